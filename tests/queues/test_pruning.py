"""Pruning of blobs beside the transactions of an embedded file."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.waiting import eventually

from postroad import connect
from postroad.blobs import DirectoryBlobs
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.queues.overflow import OverflowingQueue

LARGE = "é" * 2_000


def test_blobs_are_not_pruned_on_a_thread_whose_transaction_others_wait_for(tmp_path: Path) -> None:
    pruned_by: list[threading.Thread] = []

    class NotingBlobs(DirectoryBlobs):
        def prune(self, prefix: str, *, older_than: float) -> int:
            pruned_by.append(threading.current_thread())
            return super().prune(prefix, older_than=older_than)

    with connect(f"sqlite:///{tmp_path / 'file.db'}") as backend:
        inner = backend.create_queue(QueueSpec("jobs"), overflow="fail")
        queue = OverflowingQueue(inner, NotingBlobs(tmp_path / "blobs"), limit=1_024)
        with backend.transaction():
            queue.send([OutgoingMessage(LARGE)])
        eventually(lambda: pruned_by)

        assert pruned_by[0] is not threading.current_thread()
        assert [delivery.body for delivery in queue.receive()] == [LARGE.encode()]
