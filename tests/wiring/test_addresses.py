"""What `connect` refuses, and that a refusal leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import postroad
from postroad import OutgoingMessage, QueueSpec
from postroad.errors import ConfigurationError
from postroad.settings import data_path

BAD = {
    "an unknown scheme": "foo://x",
    "no scheme": "postroad.db",
    "no file": "sqlite:///",
    "a NUL in the path": "sqlite:///a\x00b.db",
    "an escaped NUL in the path": "sqlite:///a%00b.db",
    "a name that is no text": "sqlite:///a%FFb.db",
    "a question mark without an option": "sqlite:///a.db?",
    "a question mark in the name": "sqlite:///a?.db",
    "a host that is none": "sqlite://[/a.db",
    "a fragment of memory": "memory://#1",
    "a fragment of a region": "aws://eu-central-1#1",
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


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:///shop#1.db", "shop#1.db"),
        ("sqlite:///shop#", "shop#"),
        ("sqlite:///shop%231.db", "shop#1.db"),
        ("sqlite:///is it?.db".replace("?", "%3F"), "is it?.db"),
        ("sqlite:///100%.db", "100%.db"),
        ("sqlite:///100%2541.db", "100%41.db"),
        ("sqlite:///a;b&c=d+e.db", "a;b&c=d+e.db"),
        ("sqlite:///Straße.db", "Straße.db"),
    ],
)
def test_a_name_is_kept_to_its_last_character_and_read_back_from_the_url(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with postroad.connect(url) as backend:
        backend.create_queue(QueueSpec("jobs"))
        with postroad.connect(backend.url) as again:
            assert again.queues() == ["jobs"]

        assert data_path(backend.url) == tmp_path / name
        assert not [path.name for path in tmp_path.iterdir() if not path.name.startswith(name)]
    assert (tmp_path / name).exists()


def test_a_link_leads_to_the_same_store_as_the_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path, link, dangling = tmp_path / "data" / "postroad.db", tmp_path / "link.db", tmp_path / "data" / "dangling.db"
    link.symlink_to(dangling)
    dangling.symlink_to(path)

    with postroad.connect(f"sqlite:///{link}") as backend, postroad.connect(f"sqlite:///{path}") as other:
        backend.create_queue(QueueSpec("jobs")).send([OutgoingMessage("x" * 2_000_000)])
        [delivery] = other.queue("jobs").receive(wait=5)

    assert delivery.body == b"x" * 2_000_000
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("link")] == ["link.db"]


def test_links_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop.db"
    loop.symlink_to(loop)

    with pytest.raises(ConfigurationError, match=r"loop\.db"):
        postroad.connect(f"sqlite:///{loop}")


def test_a_relative_path_stays_the_same_file_in_another_directory_and_through_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with postroad.connect("sqlite:///postroad.db") as backend:
        queue = backend.create_queue(QueueSpec("jobs"))
        queue.send([OutgoingMessage("one")])
        monkeypatch.chdir(tmp_path / "elsewhere")
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

        queue.send([OutgoingMessage("x" * 2_000_000)])

        assert queue.stats().visible == 2
        audit = backend.audit_log()
    assert audit is not None
    assert audit.path.parent == tmp_path
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_working_directory_that_is_gone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    with pytest.raises(ConfigurationError, match=r"postroad\.db"):
        postroad.connect("sqlite:///postroad.db")


def test_topics_and_streams_take_their_settings_by_place() -> None:
    with postroad.connect("memory://") as backend:
        assert backend.topic("orders.fifo", True).traits.fifo
        assert len(backend.stream("log", 2, 3_600).shards()) == 2
