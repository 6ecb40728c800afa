"""Moves rows from the database to the publisher: claims, calls and settlements that overlap.

One thread owns the database and all decisions; others only make the calls, and put what became of them where this one
waits. A pass is claim, publish, settle; while one pass publishes, the next is claimed and the last one settled.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from queue import Empty, SimpleQueue

from postroad import failpoints
from postroad.backoff import CHANCE
from postroad.errors import NotPermitted
from postroad.outbox.dispatching.config import DispatcherConfig, DispatchReport
from postroad.outbox.dispatching.messages import (
    FIRST_KEY,
    ClaimedRow,
    Lease,
    Settled,
    Settlement,
    given_back,
    settlement,
)
from postroad.outbox.dispatching.metrics import EventLog
from postroad.outbox.dispatching.plan import Build, Call, Outcome, Plan, Run
from postroad.outbox.dispatching.publisher import Callers, Outlet, Verdict, described, judge
from postroad.outbox.dispatching.store import DispatchStore
from postroad.outbox.dispatching.target import Target

Landed = tuple[Call, list[Verdict]]
_LINGER = 0.01
"""How long the outcome of a call waits for those of others, to be written with them."""
_SPREAD = 10
"""Over how many batches of keys dispatchers spread that began together."""
PRUNE_BATCH = 500
_PRUNE_EVERY, _PRUNE_AGAIN = 60.0, 0.1
_SECOND_LOOK = 0.025
"""Of many commits within ten milliseconds one wakes us; by then the others are there, too. Those that take longer to
reach the disk are found by further looks, each after twice the time, until polling takes over."""


class Pump:
    """One dispatcher at work."""

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
        monotonic: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = CHANCE.random,
    ) -> None:
        self._store, self._outlet, self._config, self._event_log = store, outlet, config, event_log
        self._observe, self._monotonic, self._chance = observe, monotonic, chance
        self._prune, self._prune_at = prune, 0.0
        self._plan = Plan(build, publish_batch=config.publish_batch, atomic=outlet.atomic)
        self._callers = Callers(config.concurrency)
        self._landed: SimpleQueue[Landed | None] = SimpleQueue()
        self._unsettled: list[Settlement] = []
        self._unsettled_since = 0.0
        self._in_calls = 0
        self._called = False
        self._after = FIRST_KEY
        self._leaving = 0
        self._look_at = 0.0
        self._pace = config.poll
        self._saw_all = False
        self._counts: Counter[str] = Counter()
        self.target = Target(store, event_log, first_pause=config.target_pause)

    @property
    def idle(self) -> bool:
        """Whether nothing is claimed, on its way or unsettled."""
        return self._plan.empty and not self._unsettled

    @property
    def drained(self) -> bool:
        """Whether nothing is left to do, nor was anything left that is due at the last look."""
        return self.idle and self._saw_all and not self.target.paused

    def wake(self) -> None:
        """Look for rows now; any thread may say so."""
        self._landed.put(None)

    def take_report(self) -> DispatchReport:
        """What was done since the last report."""
        counts, self._counts = self._counts, Counter()
        return DispatchReport(**counts)

    def look(self) -> None:
        """Claim once, as far as the target allows."""
        now = self._monotonic()
        if self.target.paused and not self._plan.empty:
            # One message probes; what became of it brings us back here.
            self._look_at = now + self._config.poll
            return
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
        """Do what there is to do; without looking, nothing new is claimed."""
        self._start_calls()
        if self._is_time_to_settle():
            self.settle()
        if looking and not self._plan.ready and self._monotonic() >= self._look_at:
            self.look()
            self._start_calls()
        if looking:
            self.prune()

    def prune(self) -> None:
        """Delete a batch of what is done and old, once a minute, or soon again where there is more.

        Dispatchers that share an outbox each do so: where one has just pruned, another finds nothing, by one look at
        an index, and rows that one is deleting are passed over by the others.
        """
        if self._prune is None or self._monotonic() < self._prune_at:
            return
        try:
            pruned = self._prune()
        except NotPermitted as error:
            self._prune = None
            self._event_log.tell("outbox_prune_refused", error=described(error))
            return
        self._prune_at = self._monotonic() + (_PRUNE_AGAIN if pruned == PRUNE_BATCH else _PRUNE_EVERY)

    def wait(self, most_seconds: float, *, looking: bool) -> None:
        """Take in what comes until there is something to do; once something has come, whatever is there already."""
        seconds = min(most_seconds, self._patience(looking=looking))
        try:
            landed = self._landed.get(timeout=seconds) if seconds > 0 else self._landed.get_nowait()
            while True:
                self._take_in(landed)
                landed = self._landed.get_nowait()
        except Empty:
            return

    def settle(self) -> None:
        """Write down what became of rows. What another dispatcher has by now is stale."""
        if self._unsettled:
            failpoints.hit("outbox.before_settle")
            settled = self._store.settle(self._unsettled)
            ours = {each.row.lease for each, _ in settled}
            stale, self._unsettled = [each.row for each in self._unsettled if each.row.lease not in ours], []
            self._look_at, self._saw_all = 0.0, False
            self._note(Outcome(untouched=self._plan.stop({row.key for row in stale})))
            self._tell(settled, len(stale))
        self.target.tell()

    def give_back(self) -> None:
        """Let go of everything that is not in a call."""
        self._note(self._plan.give_back())

    def doubt_leases(self) -> None:
        """Renew every lease before its next call: the database may have forgotten it."""
        self._look_at = 0.0
        for run in self._plan.runs():
            run.until = 0.0

    def close(self, *, timeout: float) -> None:
        """End the threads that make calls."""
        self._callers.close(timeout=timeout)

    def _next_look(self, now: float, *, full: bool) -> float:
        if full:
            return now
        if self.target.paused and self.target.probes_at > now:
            return self.target.probes_at
        pace, self._pace = self._pace, min(self._pace * 2, self._config.poll)
        return now + pace

    def _claim(self, limit: int) -> list[ClaimedRow]:
        """Go on behind the last key, then from the first, so that no key waits for those before it."""
        rows = self._store.claim(limit, after=self._after, leaving=self._leaving)
        if len(rows) < limit and self._after != FIRST_KEY:
            rows += self._store.claim(limit - len(rows), after=FIRST_KEY)
        full = len(rows) == limit
        # Where there is much to do, dispatchers that began together go apart, so as not to walk over each other's keys.
        self._leaving = int(self._chance() * limit * _SPREAD) if full and self._after == FIRST_KEY else 0
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
                self._callers.submit(lambda call=call: self._make(call))  # type: ignore[misc]

    def _make(self, call: Call) -> None:
        """Runs on a thread of its own."""
        try:
            verdicts = self._outlet.publish(call.messages)
        except BaseException as error:
            verdicts = [judge(error)] * len(call.entries)
        self._landed.put((call, verdicts))

    def _renew_leases(self) -> None:
        now = self._monotonic()
        ending = [run for run in self._plan.waiting() if run.until - now < self._config.lease / 2]
        if not ending:
            return
        kept = self._store.renew([row for run in ending for row in run.rows])
        for run in ending:
            if all(row.lease in kept for row in run.rows):
                run.until = now + self._config.lease
            else:
                self._lose(run, kept)

    def _lose(self, run: Run, kept: set[Lease]) -> None:
        """Another dispatcher has taken the key over: nothing more of it is ours to publish."""
        rows = self._plan.drop([run])
        lost = [row for row in rows if row.lease not in kept]
        self._note(Outcome(untouched=[row for row in rows if row.lease in kept]))
        self._counts["stale"] += len(lost)
        self._event_log.tell("outbox_stale", rows=len(lost))

    def _is_time_to_settle(self) -> bool:
        if not self._unsettled:
            return self.target.has_news
        waited = self._monotonic() - self._unsettled_since
        return not self._in_calls or len(self._unsettled) >= self._config.batch or waited >= _LINGER

    def _patience(self, *, looking: bool) -> float:
        if self._unsettled:
            return _LINGER
        if looking and not self._plan.ready:
            return max(self._look_at - self._monotonic(), 0.0)
        return self._config.poll

    def _take_in(self, landed: Landed | None) -> None:
        if landed is None:
            self._look_at, self._pace = 0.0, min(_SECOND_LOOK, self._config.poll)
            return
        call, verdicts = landed
        self._in_calls -= 1
        self._note(self._plan.finish(call, verdicts))
        if self.target.hear(verdicts, self._monotonic()):
            self.give_back()

    def _note(self, outcome: Outcome) -> None:
        """Remember what to write down."""
        if not self._unsettled:
            self._unsettled_since = self._monotonic()
        self._unsettled += [settlement(row, verdict, self._config, self._chance()) for row, verdict in outcome.judged]
        self._unsettled += [given_back(row) for row in outcome.untouched]

    def _tell(self, settled: list[Settled], stale: int) -> None:
        for each, age in settled:
            self._counts[each.kind] += 1
            self._event_log.tell_row(each)
            if each.kind == "sent":
                self._observe(age)
        if stale:
            self._counts["stale"] += stale
            self._event_log.tell("outbox_stale", rows=stale)
