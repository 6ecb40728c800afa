"""Publishes events that were sent already once more: under their ids, per key in their order, and recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from postroad.connections import Database
from postroad.errors import InvalidInput, TargetUnavailable
from postroad.outbox.dialects import Phrases
from postroad.outbox.dispatching.messages import ClaimedRow, Key, Renderer
from postroad.outbox.dispatching.plan import Call, Plan
from postroad.outbox.dispatching.publisher import Outlet, Rejected, Sent, TargetDown, Tried, Verdict
from postroad.outbox.redrive import AUDIT
from postroad.outbox.rows import SENT, ReplayReport

_SELECT: Final = """
SELECT event_id FROM {outbox}
 WHERE state IN ('SENT', 'SKIPPED') AND state = 'SENT' AND updatedat >= {moment} AND updatedat < {moment}
   AND (CAST(? AS text) IS NULL OR eventtype = ?) AND (CAST(? AS text) IS NULL OR lane = ?)
 ORDER BY seq
"""
_READ: Final = """
SELECT CAST(id AS text), coalesce(tenant, ''), lane, seq, CAST(payload AS text), redrives, event_id FROM {outbox}
 WHERE event_id IN {among} AND state = 'SENT' ORDER BY seq
"""
_PAGE: Final = 100
_CALL: Final = 10
_EVER: Final = (datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC))
_AGAIN: Final = "Repair the topic and replay again; `postroad outbox audit` lists what was replayed before."
_FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sendings:
    """Which sent events are meant: those that fit everything given."""

    since: datetime | None = None
    until: datetime | None = None
    type: str | None = None
    lane: str | None = None

    def __post_init__(self) -> None:
        for name, moment in (("since", self.since), ("until", self.until)):
            if moment is not None and moment.tzinfo is None:
                raise InvalidInput(
                    f"{name}: {moment} has no time zone", field=name, remedy="Give a time with its zone, such as UTC."
                )


class Replay:
    """One replay. A key of which an event fails is stopped there; the other keys go on."""

    def __init__(
        self, database: Database, words: Phrases, renderer: Renderer, outlet: Outlet, *, by: str, reason: str
    ) -> None:
        self._database = database
        self._words = words
        self._outlet = outlet
        self._plan = Plan(renderer.message, publish_batch=_CALL, atomic=outlet.atomic)
        self._signature = by, reason
        self._stopped: set[Key] = set()
        self._error: str | None = None
        self._replayed = self._failed = self._held = 0

    def run(self, event_ids: Sequence[str], progress: Callable[[int], None] | None = None) -> ReplayReport:
        """Publish the events, page by page; TargetUnavailable when the topic takes none."""
        for start in range(0, len(event_ids), _PAGE):
            rows = self._read(event_ids[start : start + _PAGE])
            going = {event_id: row for event_id, row in rows.items() if row.key not in self._stopped}
            self._held += len(rows) - len(going)
            self._publish(going)
            if progress is not None:
                progress(self._replayed)
        return ReplayReport(len(event_ids), self._replayed, self._failed, self._held, self._error)

    def _read(self, event_ids: Sequence[str]) -> dict[str, ClaimedRow]:
        """The rows that are still there, by event id, in order."""
        with self._database.reading() as session:
            found = session.rows(self._words(_READ), (_json(event_ids),))
        return {
            event_id: ClaimedRow(row_id, Key(tenant, lane), seq, payload, 0, redrives, 0)
            for row_id, tenant, lane, seq, payload, redrives, event_id in found
        }

    def _publish(self, rows: dict[str, ClaimedRow]) -> None:
        names = {row.id: event_id for event_id, row in rows.items()}
        sent: list[str] = []
        self._plan.add(list(rows.values()), until=_FOREVER)
        try:
            for row, verdict in self._verdicts():
                if isinstance(verdict, Sent):
                    sent.append(names[row.id])
                else:
                    self._stop(row, verdict)
        finally:
            self._record(sent)

    def _verdicts(self) -> Iterator[tuple[ClaimedRow, Verdict]]:
        """What becomes of every planned row, call by call."""
        while not self._plan.empty:
            call, unbuildable = self._plan.next_call()
            yield from unbuildable.judged
            self._held += len(unbuildable.untouched)
            if call.entries:
                yield from self._call(call)

    def _call(self, call: Call) -> Iterator[tuple[ClaimedRow, Verdict]]:
        outcome = self._plan.finish(call, self._outlet.publish(call.messages))
        yield from sorted(outcome.judged, key=lambda judged: isinstance(judged[1], TargetDown))
        self._held += len(outcome.untouched)

    def _stop(self, row: ClaimedRow, verdict: Verdict) -> None:
        if isinstance(verdict, TargetDown):
            error = TargetUnavailable(verdict.error, retry_after=verdict.retry_after)
            error.remedy = _AGAIN
            raise error
        self._stopped.add(row.key)
        if isinstance(verdict, Tried | Rejected):
            self._failed += 1
            self._error = verdict.error
        else:
            self._held += 1

    def _record(self, sent: Sequence[str]) -> None:
        self._replayed += len(sent)
        if sent:
            by, reason = self._signature
            with self._database.transaction() as session:
                session.change(self._words(AUDIT), (by, "replay", reason, SENT, _json(sent)))


def selected(database: Database, words: Phrases, wanted: Sendings) -> list[str]:
    """The ids of the sent events that fit, in the order in which they were recorded."""
    since, until = (_text(moment) for moment in (wanted.since or _EVER[0], wanted.until or _EVER[1]))
    with database.reading() as session:
        found = session.rows(words(_SELECT), (since, until, wanted.type, wanted.type, wanted.lane, wanted.lane))
    return [event_id for (event_id,) in found]


def _text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _json(values: Sequence[str]) -> str:
    return msgspec.json.encode(list(values)).decode()
