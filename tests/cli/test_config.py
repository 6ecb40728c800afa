"""`postroad config`: what the settings are, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.terminal import Postroad


def test_show_tells_value_source_and_variable_of_every_key(postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("postroad.toml").write_text("concurrency = 7\n")
    monkeypatch.setenv("POSTROAD_STAGE", "prod")

    items = {item["key"]: item for item in postroad("config", "show", "--json").document["items"]}

    assert items["concurrency"] == {"key": "concurrency", "value": 7, "source": "file", "env": "POSTROAD_CONCURRENCY"}
    assert items["stage"] == {"key": "stage", "value": "prod", "source": "env", "env": "POSTROAD_STAGE"}
    assert items["port"]["source"] == "default"


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_show_stars_secrets(flags: tuple[str, ...], postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_TOKEN", "pr_very_secret")

    outcome = postroad("config", "show", *flags)

    assert "***" in outcome.out
    assert "pr_very_secret" not in outcome.out


@pytest.mark.parametrize(
    ("text", "said", "meant"),
    [
        ('port = "abc"', "port: 'abc' from file postroad.toml is not a whole number from 0 to 65535", None),
        ("prot = 1", "prot: not a setting (file postroad.toml)", "port"),
        ("\tprot\t=\t1", "prot: not a setting (file postroad.toml)", "port"),
        ("port = ", "file postroad.toml is not TOML: Invalid value (at end of document)", None),
        ('token = "pr_secret"', "token: not accepted in file postroad.toml, where others may read it", None),
    ],
)
def test_check_names_what_is_wrong_in_the_file(text: str, said: str, meant: str | None, postroad: Postroad) -> None:
    Path("postroad.toml").write_text(text)

    outcome = postroad("config", "check")

    first, *rest = outcome.err.splitlines()
    assert outcome.code == 2
    assert first == f"error: {said}"
    assert (f'did you mean "{meant}"?' in rest) is (meant is not None)
    assert "pr_secret" not in outcome.err


def test_check_names_what_is_wrong_in_the_environment(postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_PORT", "70000")

    outcome = postroad("config", "check")

    assert outcome.code == 2
    assert outcome.err.splitlines() == [
        "error: port: '70000' from variable POSTROAD_PORT is not a whole number from 0 to 65535",
        "Give a whole number from 0 to 65535.",
    ]


def test_check_starts_and_makes_nothing(postroad: Postroad, tmp_path: Path) -> None:
    assert postroad("config", "check").code == 0

    assert list(tmp_path.iterdir()) == []
