"""Redrives a few rows first and the rest only when those went through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from postroad.clock import Clock
from postroad.outbox.redriving import Redriving, Selection, group_of
from postroad.outbox.rows import PENDING, SENT, EventId, OutboxRow

_LOOK_EVERY_SECONDS: Final = 0.05
_LONGEST_SECONDS: Final = 60.0


def redrive_behind_canaries(
    redriving: Redriving,
    selection: Selection,
    *,
    canaries: int,
    by: str,
    reason: str,
    look: Callable[[EventId], OutboxRow | None],
    clock: Clock,
    sleep: Callable[[float], None],
) -> list[OutboxRow]:
    """The rows that were redriven: all of them, or the canaries alone when one failed as before or none settled."""
    chosen = redriving.selected(selection)
    if not chosen:
        return []
    groups = {str(row.event_id): group_of(row) for row in chosen}
    first = redriving.redrive(_only(chosen[:canaries]), by=by, reason=reason)
    done = {row.event_id for row in first}
    rest = [row for row in chosen if row.event_id not in done]
    if not rest or not _went_through(first, groups, look, clock, sleep):
        return first
    return first + redriving.redrive(_only(rest), by=by, reason=reason)


def _only(rows: Sequence[OutboxRow]) -> Selection:
    return Selection(event_ids=tuple(str(row.event_id) for row in rows))


def _went_through(
    rows: Sequence[OutboxRow],
    groups: dict[str, str],
    look: Callable[[EventId], OutboxRow | None],
    clock: Clock,
    sleep: Callable[[float], None],
) -> bool:
    until = clock.monotonic() + _LONGEST_SECONDS
    waiting = list(rows)
    while waiting and clock.monotonic() < until:
        now = [found for row in waiting if (found := look(row.event_id)) is not None]
        if any(_failed_again(row, groups) for row in now):
            return False
        waiting = [row for row in now if row.state == PENDING and not row.attempts]
        if waiting:
            sleep(_LOOK_EVERY_SECONDS)
    return not waiting


def _failed_again(row: OutboxRow, groups: dict[str, str]) -> bool:
    """A first attempt that failed in the same way is enough; its retries need not be waited for."""
    return row.state != SENT and row.attempts > 0 and group_of(row) == groups.get(str(row.event_id))
