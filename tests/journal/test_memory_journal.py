"""The journal in memory keeps every rule of journals."""

from __future__ import annotations

import pytest
from tests.memory import memory_blobs, memory_records

from postroad.journal.overflow import Overflow
from postroad.journal.store import StoredJournal
from postroad.testing.journal import JournalConformance, JournalFixture


class TestMemoryJournal(JournalConformance):
    @pytest.fixture
    def ground(self) -> JournalFixture:
        blobs = memory_blobs()
        return JournalFixture(journal=StoredJournal(memory_records(), Overflow(blobs)), blobs=blobs)
