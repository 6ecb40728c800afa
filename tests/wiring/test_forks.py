"""A backend belongs to the process that opened it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import postroad
from postroad import OutgoingMessage, QueueSpec, Record
from postroad.errors import ConfigurationError


def _in_a_child(work: Callable[[], object]) -> int:
    """0 when a forked child was refused, else 1."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except ConfigurationError as error:
            os._exit(0 if "fork" in error.message else 1)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_forked_child_cannot_use_what_it_inherited(kind: str, tmp_path: Path) -> None:
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/p.db"
    with postroad.connect(url) as backend:
        queue, stream = backend.create_queue(QueueSpec("jobs")), backend.stream("log", 1)
        queue.send([OutgoingMessage("one")])

        refusals = [
            _in_a_child(lambda: queue.send([OutgoingMessage("two")])),
            _in_a_child(queue.receive),
            _in_a_child(lambda: backend.topic("news").publish([OutgoingMessage("two")])),
            _in_a_child(lambda: stream.put([Record("k", b"two")])),
            _in_a_child(lambda: backend.items().put("t/k", b"two")),
        ]

        assert refusals == [0, 0, 0, 0, 0]
        assert [delivery.body for delivery in queue.receive()] == [b"one"]
