"""The journal on the embedded engine keeps every rule of journals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.blobs.directory import DirectoryBlobs
from postroad.connections.engine import Engine
from postroad.journal.overflow import Overflow
from postroad.journal.sqlite import SQLiteRecords
from postroad.journal.stored import StoredJournal
from postroad.testing.journal import JournalConformance, JournalGround


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path / "postroad.db")
    yield engine
    engine.close()


class TestSQLiteJournal(JournalConformance):
    @pytest.fixture
    def ground(self, engine: Engine, tmp_path: Path) -> JournalGround:
        blobs = DirectoryBlobs(tmp_path / "blobs")
        return JournalGround(journal=StoredJournal(SQLiteRecords(engine), Overflow(blobs)), blobs=blobs)
