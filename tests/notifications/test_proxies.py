from __future__ import annotations

import pytest

from postroad.notifications.senders.addresses import proxy_for


@pytest.mark.parametrize(
    ("address", "bypass", "proxy"),
    [
        ("https://api.push.apple.com", "", "http://proxy:3128"),
        ("https://api.push.apple.com", "push.apple.com", None),
        ("https://localhost:2197", "", None),
        ("https://127.0.0.1:2197", "", None),
    ],
)
def test_a_provider_is_reached_through_the_proxy_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, address: str, bypass: str, proxy: str | None
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", bypass)

    assert proxy_for(address) == proxy
