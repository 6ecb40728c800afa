"""The journal in memory keeps every rule of journals."""

from __future__ import annotations

import pytest

from postroad.blobs.memory import MemoryBlobs
from postroad.journal.memory import MemoryRecords
from postroad.journal.overflow import Overflow
from postroad.journal.stored import StoredJournal
from postroad.testing.journal import JournalConformance, JournalGround


class TestMemoryJournal(JournalConformance):
    @pytest.fixture
    def ground(self) -> JournalGround:
        blobs = MemoryBlobs()
        return JournalGround(journal=StoredJournal(MemoryRecords(), Overflow(blobs)), blobs=blobs)
