"""The rules of journals, one test each: a new adapter is a subclass with the fixture `ground`."""

from postroad.testing.journal.appending import Appending
from postroad.testing.journal.fixture import JournalFixture, JournalGround
from postroad.testing.journal.overflowing import Overflowing
from postroad.testing.journal.paging import Paging
from postroad.testing.journal.querying import Querying
from postroad.testing.journal.states import States


class JournalConformance(Appending, Querying, Paging, Overflowing, States):
    """Every promise of `Journal`."""


__all__ = ["JournalConformance", "JournalFixture", "JournalGround"]
