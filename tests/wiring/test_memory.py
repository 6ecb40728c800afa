"""A store in memory: its own for each connection, gone when it is closed, and after a kill removed by the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import postroad
from postroad import OutgoingMessage, QueueSpec
from postroad.wiring import sqlite

CHILD = """
import os, sys, postroad
backend = postroad.connect("memory://")
backend.create_queue(postroad.QueueSpec("jobs"))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stores in memory are for the time of a test."""
    monkeypatch.setattr(sqlite, "_MEMORY", tmp_path)
    return tmp_path


def test_each_connection_is_a_store_of_its_own() -> None:
    with postroad.connect("memory://") as one, postroad.connect("memory://") as other:
        one.create_queue(QueueSpec("jobs"))

        assert list(one.queues()) == ["jobs"]
        assert list(other.queues()) == []


def test_nothing_is_left_when_it_is_closed(place: Path) -> None:
    with postroad.connect("memory://") as backend:
        backend.create_queue(QueueSpec("jobs")).send([OutgoingMessage("x" * 1_000_000)])
        during = len(list(place.iterdir()))

    assert (during, list(place.iterdir())) == (2, [])


def test_it_says_that_it_is_not_durable_and_has_transactions() -> None:
    with postroad.connect("memory://") as backend:
        queue = backend.create_queue(QueueSpec("jobs"))
        with pytest.raises(ValueError, match="undo"), backend.transaction():
            queue.send([OutgoingMessage("one")])
            raise ValueError("undo")

        assert not queue.traits.durable
        assert queue.stats().visible == 0


def test_what_a_killed_process_left_is_removed_by_the_next_one(place: Path) -> None:
    code = f"import pathlib, postroad.wiring.sqlite as s\ns._MEMORY = pathlib.Path({str(place)!r})\n{CHILD}"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    with postroad.connect("memory://"):
        beside_a_living_one = len(list(place.iterdir()))
    child.send_signal(signal.SIGKILL)
    child.communicate()

    with postroad.connect("memory://"):
        after_its_death = len(list(place.iterdir()))

    assert (beside_a_living_one, after_its_death) == (4, 2)


def test_a_forked_child_takes_nothing_from_its_parent(place: Path) -> None:
    with postroad.connect("memory://") as backend:
        queue = backend.create_queue(QueueSpec("jobs"))
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)

        assert queue.send([OutgoingMessage("one")])[0].ok
