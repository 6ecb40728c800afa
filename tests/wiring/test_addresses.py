"""What `connect` refuses, and that a refusal leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

import postroad
from postroad.errors import ConfigurationError

BAD = {
    "an unknown scheme": "foo://x",
    "no scheme": "postroad.db",
    "no file": "sqlite:///",
    "a NUL in the path": "sqlite:///a\x00b.db",
    "an escaped NUL in the path": "sqlite:///a%00b.db",
    "memory in the words of SQLite": "sqlite:///:memory:",
    "a place in memory": "memory://here",
    "an unknown option": "aws://eu-central-1?nope=1",
    "a region with a space": "aws://not a region",
    "credentials": "aws://key:secret@eu-central-1",
    "an endpoint without a scheme": "aws://eu-central-1?endpoint_url=localhost:4566",
}


@pytest.mark.parametrize("url", BAD.values(), ids=BAD.keys())
def test_an_address_that_cannot_work_is_refused_and_leaves_no_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigurationError) as caught:
        postroad.connect(url)

    assert caught.value.field == "url"
    assert "aws://region" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_topics_and_streams_take_their_settings_by_place() -> None:
    with postroad.connect("memory://") as backend:
        assert backend.topic("orders.fifo", True).traits.fifo
        assert len(backend.stream("log", 2, 3_600).shards()) == 2
