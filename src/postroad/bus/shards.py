"""The records of one shard in hand: given out in order, and a position that moves only past handled ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from postroad.streams import ShardLease, StreamRecord


@dataclass(slots=True, eq=False)
class Entry:
    """One record in hand."""

    record: StreamRecord
    receives: int = 0
    ready_at: float = 0.0
    given: bool = False
    done: bool = False
    error: str | None = None


@dataclass(slots=True, eq=False)
class Window:
    """What was read of one shard and is not settled yet. `after` is where to read on."""

    shard: str
    after: str
    lease: ShardLease | None = None
    entries: deque[Entry] = field(default_factory=deque)

    def wants(self, limit: int, now: float) -> int:
        """How many records to read so that `limit` could be given out; none while the shard has to wait."""
        return 0 if self._waits(now) else max(0, limit - len(self.entries))

    def add(self, records: Sequence[StreamRecord]) -> None:
        """Hold what was read."""
        self.entries.extend(map(Entry, records))
        if records:
            self.after = records[-1].sequence

    def give(self, limit: int, now: float) -> list[Entry]:
        """The next entries in order; none while earlier ones are out or have to wait."""
        given: list[Entry] = []
        if self._waits(now):
            return given
        for entry in self.entries:
            if len(given) == limit or entry.ready_at > now:
                break
            entry.given = True
            entry.receives += 1
            given.append(entry)
        return given

    def settle(self, entry: Entry) -> None:
        """The entry is handled."""
        entry.done, entry.given = True, False

    def give_back(self, entries: Collection[Entry], ready_at: float, error: str | None) -> None:
        """The entries come again, and nothing behind them before; the error is that of the first of them."""
        for entry in entries:
            entry.given, entry.ready_at = False, ready_at
        for entry in self.entries:
            if entry in entries:
                entry.error = error or entry.error
                return

    def advance(self) -> str | None:
        """Let go of the handled records at the front; the last one's sequence, None when the front is not handled."""
        position = None
        while self.entries and self.entries[0].done:
            position = self.entries.popleft().record.sequence
        return position

    def _waits(self, now: float) -> bool:
        if any(entry.given for entry in self.entries):
            return True
        return bool(self.entries) and self.entries[0].ready_at > now
