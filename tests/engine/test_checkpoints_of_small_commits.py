"""Many small commits write the same pages again and again: their number ends the log too."""

from __future__ import annotations

from pathlib import Path

import pytest

import postroad
from postroad import OutgoingMessage, QueueSpec
from postroad.engine import disk


def _log_bytes(path: Path) -> int:
    with postroad.connect(f"sqlite:///{path}") as backend:
        queue = backend.create_queue(QueueSpec("orders"))
        for _ in range(60):
            queue.send([OutgoingMessage("small")])
        return path.with_name(f"{path.name}-wal").stat().st_size


def test_the_log_starts_again_after_so_many_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = _log_bytes(tmp_path / "long.db")
    monkeypatch.setattr(disk, "CHECKPOINT_COMMITS", 5)

    short = _log_bytes(tmp_path / "short.db")

    assert short < long / 2
