"""Moves rows from the database to the publisher: claims, calls and settlements that overlap.

One thread owns the database and makes all decisions. Other threads make the calls and put the verdicts into a queue
that the first one reads. A pass is claim, publish, settle; while one pass publishes, the next is claimed and the last
one is settled.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from postroad import failpoints
from postroad.backoff import CHANCE
from postroad.errors import NotPermitted
from postroad.outbox.dispatching.config import DispatcherConfig, DispatchReport
from postroad.outbox.dispatching.decisions import Build, Call, Outcome, Plan, Target, released, settlement
from postroad.outbox.dispatching.publisher import Outlet, Verdict, described, verdict_of
from postroad.outbox.dispatching.store import FIRST_KEY, ClaimedRow, DispatchStore, Settlement
from postroad.receiving import Workers
from postroad.telemetry import get_logger, tracing

_standard = logging.getLogger("postroad.outbox")
_WARNINGS = frozenset(
    {
        *("outbox_retried", "outbox_failed", "outbox_stale", "outbox_target_unavailable", "outbox_database_lost"),
        *("outbox_listen_unavailable", "outbox_stop_timed_out", "outbox_prune_refused", "outbox_run_failed"),
    }
)
_OF_ROWS = {"sent": "outbox_published", "retried": "outbox_retried", "failed": "outbox_failed"}


class _Heading(msgspec.Struct, rename="camel"):
    event_id: str
    traceparent: str | None = None


class _Wire(msgspec.Struct):
    envelope: _Heading


class EventLog:
    """Writes the log lines of one dispatcher, which publishes to the topic or queue `target`."""

    def __init__(self, dispatcher: str, target: str) -> None:
        self._dispatcher, self._target = dispatcher, target

    def write(self, event: str, **fields: Any) -> None:
        level = _level(event)
        if _standard.isEnabledFor(level):
            get_logger("outbox").log(level, event, dispatcher=self._dispatcher, **fields)

    def write_settled(self, settlement: Settlement) -> None:
        """Write the line of a row that was published or failed; one that was only released has none."""
        event = _OF_ROWS.get(settlement.kind)
        if event is None or not _standard.isEnabledFor(_level(event)):
            return
        row, error = settlement.row, {} if settlement.error is None else {"error": settlement.error}
        fields = {"row": row.id, "seq": row.seq, "attempt": max(row.attempts, 0) + 1, "redrives": row.redrives}
        self.write(event, **fields, queue=self._target, **_named(row.payload), **error)


def _named(payload: str) -> dict[str, str]:
    """Return the ids of the event and of its trace, as far as they can be read."""
    try:
        heading = msgspec.json.decode(payload, type=_Wire).envelope
    except msgspec.DecodeError:
        return {}
    trace_id = tracing.trace_id(heading.traceparent)
    return {"event_id": heading.event_id} | ({} if trace_id is None else {"trace_id": trace_id})


def _level(event: str) -> int:
    return logging.WARNING if event in _WARNINGS else logging.INFO


_Answered = tuple[Call, list[Verdict]]
_LINGER = 0.01
"""Seconds for which the outcome of a call waits for others, to be settled with them."""
_SPREAD = 10
"""Over how many batches of keys dispatchers that start together spread."""
PRUNE_BATCH = 500
_PRUNE_EVERY, _PRUNE_AGAIN = 60.0, 0.1
_RESTART_EVERY = 5.0
"""Seconds between two looks for pauses that a clock which was set back has made longer."""
_SECOND_LOOK = 0.025
"""Of many commits within ten milliseconds one wakes the dispatcher; after this time it sees the others too. Those that
take longer to reach the disk are found by further claims, each after twice the time, until polling takes over."""


class Pump:
    """The work of one dispatcher."""

    def __init__(
        self,
        store: DispatchStore,
        outlet: Outlet,
        build: Build,
        config: DispatcherConfig,
        *,
        event_log: EventLog,
        observe: Callable[[float], None],
        prune: Callable[[], int] | None = None,
    ) -> None:
        self._store, self._outlet, self._config, self._event_log = store, outlet, config, event_log
        self._observe, self._prune, self._prune_at = observe, prune, 0.0
        self._plan = Plan(build, publish_batch=config.publish_batch, atomic=outlet.atomic)
        self._callers = Workers(config.concurrency, "postroad-outbox-publish")
        self._answers: SimpleQueue[_Answered | None] = SimpleQueue()
        self._unsettled: list[Settlement] = []
        self._unsettled_since = 0.0
        self._in_calls = 0
        self._called = False
        self._after = FIRST_KEY
        self._leaving = 0
        self._look_at = self._restart_at = 0.0
        self._pace = config.poll
        self._saw_all = False
        self._counts: Counter[str] = Counter()
        self.target = Target(store, event_log.write, first_pause=config.target_pause)

    @property
    def idle(self) -> bool:
        """Whether no row is claimed, being published or unsettled."""
        return self._plan.empty and not self._unsettled

    @property
    def drained(self) -> bool:
        """Whether nothing is left to do, and the last claim left no row that is due."""
        return self.idle and self._saw_all and not self.target.paused

    def wake(self) -> None:
        """Claim rows now; any thread may call it."""
        self._answers.put(None)

    def take_report(self) -> DispatchReport:
        """Return what was done since the last report."""
        counts, self._counts = self._counts, Counter()
        return DispatchReport(**counts)

    def look(self) -> None:
        """Claim once, as many rows as the target allows."""
        now = time.monotonic()
        if self.target.paused and not self._plan.empty:
            # One message probes; its outcome leads back here.
            self._look_at = now + self._config.poll
            return
        if now >= self._restart_at:
            self._store.restart_pauses()
            self._restart_at = now + _RESTART_EVERY
        allowed = self.target.allows(now, self._config.batch)
        rows = self._claim(allowed) if allowed else []
        self._saw_all = len(rows) < allowed
        self._look_at = self._next_look(now, full=len(rows) == self._config.batch)
        if rows:
            self._plan.add(rows, until=now + self._config.lease)
            self._counts["claimed"] += len(rows)
            self._called = False
            failpoints.hit("outbox.after_claim")

    def work(self, *, looking: bool) -> None:
        """Do what there is to do; unless `looking`, claim nothing new."""
        self._start_calls()
        waited = time.monotonic() - self._unsettled_since
        is_full = len(self._unsettled) >= self._config.batch
        if self._unsettled and (not self._in_calls or is_full or waited >= _LINGER):
            self.settle()
        elif not self._unsettled:
            self.target.save()
        if looking and not self._plan.ready and time.monotonic() >= self._look_at:
            self.look()
            self._start_calls()
        if looking:
            self.prune()

    def prune(self) -> None:
        """Delete a batch of old rows that are done, once a minute, or again soon if there are more.

        All dispatchers of an outbox do so: after one has pruned, the others find nothing with one look at an index, and
        they skip the rows that another one is deleting.
        """
        if self._prune is None or time.monotonic() < self._prune_at:
            return
        try:
            pruned = self._prune()
        except NotPermitted as error:
            self._prune = None
            self._event_log.write("outbox_prune_refused", error=described(error))
            return
        self._prune_at = time.monotonic() + (_PRUNE_AGAIN if pruned == PRUNE_BATCH else _PRUNE_EVERY)

    def wait(self, most_seconds: float, *, looking: bool) -> None:
        """Wait until there is something to do, and take in all verdicts and wake-ups that have arrived by then."""
        seconds = self._config.poll
        if self._unsettled:
            seconds = _LINGER
        elif looking and not self._plan.ready:
            seconds = self._look_at - time.monotonic()
        seconds = min(most_seconds, seconds)
        try:
            answered = self._answers.get(timeout=seconds) if seconds > 0 else self._answers.get_nowait()
            while True:
                self._take_in(answered)
                answered = self._answers.get_nowait()
        except Empty:
            return

    def settle(self) -> None:
        """Write the settlements. A row that another dispatcher has claimed since is stale."""
        if self._unsettled:
            failpoints.hit("outbox.before_settle")
            settled = self._store.settle(self._unsettled)
            ours = {each.row.lease for each, _ in settled}
            stale, self._unsettled = [each.row for each in self._unsettled if each.row.lease not in ours], []
            self._look_at, self._saw_all = 0.0, False
            self._note(Outcome(untouched=self._plan.stop({row.key for row in stale})))
            for each, age in settled:
                self._counts[each.kind] += 1
                self._event_log.write_settled(each)
                if each.kind == "sent":
                    self._observe(age)
            self._count_stale(len(stale))
        self.target.save()

    def release(self) -> None:
        """Release all rows that are not in a call."""
        self._note(Outcome(untouched=self._plan.stop({run.key for run in self._plan.runs()})))

    def doubt_leases(self) -> None:
        """Renew every lease before its next call: the database may have lost it."""
        self._look_at = 0.0
        for run in self._plan.runs():
            run.until = 0.0

    def _next_look(self, now: float, *, full: bool) -> float:
        if full:
            return now
        if self.target.paused and self.target.probes_at > now:
            return self.target.probes_at
        pace, self._pace = self._pace, min(self._pace * 2, self._config.poll)
        return now + pace

    def _claim(self, limit: int) -> list[ClaimedRow]:
        """Go on behind the last key and then from the first, so that no key waits for those before it."""
        rows = self._store.claim(limit, after=self._after, leaving=self._leaving)
        if len(rows) < limit and self._after != FIRST_KEY:
            rows += self._store.claim(limit - len(rows), after=FIRST_KEY)
        full = len(rows) == limit
        # With a large backlog, dispatchers that start together spread out, so that they do not try for the same keys.
        self._leaving = int(CHANCE.random() * limit * _SPREAD) if full and self._after == FIRST_KEY else 0
        walked = [row.key for row in rows if not row.waited]
        self._after = walked[-1] if full and walked else FIRST_KEY
        return rows

    def _start_calls(self) -> None:
        while self._in_calls < self._config.concurrency and self._plan.ready:
            self._renew_leases()
            if self._called:
                failpoints.hit("outbox.mid_batch")
            call, outcome = self._plan.next_call()
            self._note(outcome)
            if call.entries:
                self._in_calls += 1
                self._called = True
                self._callers.submit(partial(self._make, call))

    def _make(self, call: Call) -> None:
        """Publish, on a thread of the callers."""
        try:
            verdicts = self._outlet.publish(call.messages)
        except BaseException as error:
            verdicts = [verdict_of(error)] * len(call.entries)
        self._answers.put((call, verdicts))

    def _renew_leases(self) -> None:
        now = time.monotonic()
        ending = [run for run in self._plan.ready if run.until - now < self._config.lease / 2]
        if not ending:
            return
        kept = self._store.renew([row for run in ending for row in run.rows])
        for run in ending:
            if all(row.lease in kept for row in run.rows):
                run.until = now + self._config.lease
                continue
            # Another dispatcher has claimed the key: this one must not publish any more of it.
            rows = self._plan.drop([run])
            still_held = [row for row in rows if row.lease in kept]
            self._note(Outcome(untouched=still_held))
            self._count_stale(len(rows) - len(still_held))

    def _count_stale(self, rows: int) -> None:
        if rows:
            self._counts["stale"] += rows
            self._event_log.write("outbox_stale", rows=rows)

    def _take_in(self, answered: _Answered | None) -> None:
        if answered is None:
            self._look_at, self._pace = 0.0, min(_SECOND_LOOK, self._config.poll)
            return
        call, verdicts = answered
        self._in_calls -= 1
        self._note(self._plan.finish(call, verdicts))
        if self.target.observe(verdicts, time.monotonic()):
            self.release()

    def _note(self, outcome: Outcome) -> None:
        if not self._unsettled:
            self._unsettled_since = time.monotonic()
        self._unsettled += [
            settlement(row, verdict, self._config, CHANCE.random()) for row, verdict in outcome.verdicts
        ]
        self._unsettled += [released(row) for row in outcome.untouched]
