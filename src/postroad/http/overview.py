"""The overview: measured at most once a second, however many ask for it or watch it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from msgspec import structs

from postroad.agents import DEAD_QUEUE, REJECTED_QUEUE, Agents
from postroad.clock import Clock
from postroad.dashboard import MOST_QUEUES
from postroad.errors import PostroadError
from postroad.http import attention
from postroad.http.access import OutboxAccess, WorkAccess
from postroad.http.samples import FINE_SECONDS, QueueRates, Sample, Samples
from postroad.http.threads import Threads
from postroad.journal import JournalEvent
from postroad.operations import AuditLog
from postroad.outbox import OutboxStatus
from postroad.queues import QueueCounters, QueueOverview
from postroad.settings import Settings, notification_settings
from postroad.tasks import TaskFilter
from postroad.telemetry import get_logger
from postroad.views import Attention, Backlog, Lags, Overview, Part, Series, Totals, Work
from postroad.wiring import Backend

if TYPE_CHECKING:
    from postroad.operations import Finding

_FRESH_SECONDS: Final = 1.0
_SLOW_SECONDS: Final = 15.0
_SAVE_SECONDS: Final = 10.0
# Reading takes at most this part of the time; a store of many queues is read less often.
_SHARE: Final = 0.05
_HOUR: Final = timedelta(hours=1)
T = TypeVar("T")


class Paced(Generic[T]):
    """What `read` returned last: read again when it is `seconds` old, later if all but the first take long."""

    def __init__(self, read: Callable[[], T], seconds: float, clock: Clock) -> None:
        self._read = read
        self._seconds = seconds
        self._clock = clock
        self._due = float("-inf")
        self.last: T | None = None

    @property
    def due(self) -> bool:
        """Whether it is time to read again."""
        return self.last is None or self._clock.monotonic() >= self._due

    def get(self) -> T:
        """Return what is known, read again if it is due."""
        if not self.due:
            assert self.last is not None
            return self.last
        is_first, began = self.last is None, self._clock.monotonic()
        self.last = self._read()
        cost = 0.0 if is_first else self._clock.monotonic() - began
        self._due = began + max(self._seconds, cost / _SHARE)
        return self.last


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the stores answered at one time. What pages want to know of all queues is computed once for all of them."""

    queues: list[QueueOverview]
    dead_letter_queues: frozenset[str]
    deleted: QueueCounters | None
    """What had happened on queues that were deleted since; None where the store does not count."""
    totals: QueueCounters | None
    """None where the store does not count."""
    backlog: Backlog
    lags: Lags
    work: Work
    attention: tuple[Attention, ...]
    outbox: OutboxStatus | str | None
    """A text says why it cannot be read; None if there is none."""

    @cached_property
    def by_name(self) -> Mapping[str, QueueOverview]:
        """The queues by their names."""
        return {each.spec.name: each for each in self.queues}

    @cached_property
    def largest(self) -> Sequence[QueueOverview]:
        """The queues that hold most, as many as a map shows."""
        return nlargest(MOST_QUEUES, self.queues, key=attention.size)

    @cached_property
    def dead(self) -> Sequence[QueueOverview]:
        """The dead-letter queues that are not empty, the largest first."""
        found = [each for each in self.queues if each.spec.name in self.dead_letter_queues and attention.size(each)]
        return sorted(found, key=lambda each: -attention.size(each))


class Overviews:
    """The overview of one server.

    Args:
        backend: The store.
        settings: The tenant, and the address of the data.
        work: The tasks.
        agents: The agents.
        outbox: The outbox, if there is one.
        parts: The parts of the process, as they are now.
        threads: Where the stores are read.
    """

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        *,
        work: WorkAccess,
        agents: Agents,
        outbox: OutboxAccess,
        parts: Callable[[], tuple[Part, ...]],
        threads: Threads,
    ) -> None:
        self._backend = backend
        self._settings = settings
        self._clock = backend.clock
        self._work = work
        self._agents = agents
        self._parts = parts
        self._threads = threads
        self._samples = Samples()
        self._key = f"{settings.tenant}/OVERVIEW#samples"
        self.rates = QueueRates()
        """What was sent to each queue of late."""
        self._restored = False
        self._saved: Sample | None = None
        self._notification_queues = _notification_queues()
        self._measuring = asyncio.Lock()
        self._outbox = Paced(lambda: (outbox.status(),), 0.0, self._clock)
        self._slow = Paced(self._read_slowly, _SLOW_SECONDS, self._clock)
        self._measured = Paced(self._measure, _FRESH_SECONDS, self._clock)

    async def measured(self) -> Measured:
        """Return what the stores hold, not more than a second old."""
        async with self._measuring:
            if not self._measured.due:
                return self._measured.get()
            return await self._threads.run(self._measured.get)

    async def document(self, window: int) -> Overview:
        """Return the overview with the charts of the last `window` seconds."""
        return self.compose(await self.measured(), window)

    def compose(self, found: Measured, window: int) -> Overview:
        """Return the overview of what was measured."""
        step, sent, acked, dead = self._samples.series(window, self._clock.monotonic())
        counted = found.totals
        items = [*attention.of_parts(self._parts()), *found.attention]
        return Overview(
            at=self._clock.now(),
            window_seconds=window,
            step_seconds=step,
            series=Series(sent, acked, dead),
            totals=Totals(*(None if counted is None else getattr(counted, name) for name in Totals.__struct_fields__)),
            backlog=found.backlog,
            lag_seconds=found.lags,
            work=structs.replace(found.work, unhealthy=sum(item.href == attention.HEALTH for item in items)),
            attention=items,
        )

    def backlog(self, window: int) -> list[int]:
        """Return how many messages waited at the end of each step of the window, for its chart."""
        return self._samples.backlog(window, self._clock.monotonic())

    @property
    def counts(self) -> Mapping[str, Any]:
        """What the navigation shows, by the path in the overview; nothing before it was measured."""
        if (found := self._measured.last) is None:
            return {}
        shown = self.compose(found, FINE_SECONDS)
        counts: dict[str, Any] = {"attention.length": len(shown.attention)}
        for group, values in (("backlog", shown.backlog), ("work", shown.work)):
            counts |= {f"{group}.{name}": getattr(values, name) for name in values.__struct_fields__}
        return counts

    async def keep_sampling(self) -> None:
        """Sample the counters until it is cancelled, so that the charts have no gaps while nobody watches."""
        # The first sample is stored at once: after a crash, what happened since is the difference to it.
        save_at = self._clock.monotonic()
        while True:
            with suppress(PostroadError):
                if (await self.measured()).totals is None:
                    return
                if self._clock.monotonic() >= save_at:
                    save_at = self._clock.monotonic() + _SAVE_SECONDS
                    await self._threads.run(self.save)
            await asyncio.sleep(FINE_SECONDS)

    def save(self) -> None:
        """Store the samples, unless nothing happened since they were stored."""
        newest = self._samples.newest
        if newest is None or (self._saved is not None and newest[1:] == self._saved[1:]):
            return
        now, wall = self._clock.monotonic(), self._clock.now().timestamp()
        try:
            self._backend.items().put(self._key, self._samples.dump(now=now, wall=wall))
        except PostroadError as error:
            get_logger("http").warning("samples_not_saved", error=str(error))
        else:
            self._saved = newest

    def _measure(self) -> Measured:
        """Read the stores, each as often as it may be; runs on a thread."""
        if not self._restored:
            stored = self._backend.items().get(self._key)
            self._restored = True
            if stored is not None:
                self._samples.restore(stored.value, now=self._clock.monotonic(), wall=self._clock.now().timestamp())
        queues, deleted = self._backend.census()
        self.rates.add(queues, self._clock.monotonic())
        notified = [each for each in queues if each.spec.name in self._notification_queues]
        [outbox] = self._outbox.get()
        work, findings = self._slow.get()
        letters = frozenset(each.spec.dead_letter for each in queues if each.spec.dead_letter is not None)
        letters |= {DEAD_QUEUE, REJECTED_QUEUE}
        totals = None if deleted is None else _sum(queues, deleted)
        backlog = _backlog(queues, letters, outbox)
        if totals is not None:
            waiting = backlog.visible + backlog.in_flight + backlog.delayed
            self._samples.add(Sample(self._clock.monotonic(), totals.sent, totals.acked, totals.dead, waiting))
        return Measured(
            queues=queues,
            dead_letter_queues=letters,
            deleted=deleted,
            totals=totals,
            backlog=backlog,
            lags=_lags(queues, letters, outbox),
            work=structs.replace(work, queues=len(queues), notifications=sum(map(attention.size, notified))),
            attention=(
                *attention.of_queues(queues, letters),
                *attention.of_outbox(outbox),
                *attention.of_tasks(work.failed_tasks or 0),
                *attention.of_findings(findings),
            ),
            outbox=outbox,
        )

    def _read_slowly(self) -> tuple[Work, list[Finding]]:
        """Return what there is of tasks and agents, and what is doubtful about the files."""
        # It is slow to load, and a server that starts answers requests first.
        from postroad.operations import file_findings

        now, work = self._clock.now(), self._work
        since = int((now - _HOUR).timestamp() * 1_000)
        failed = TaskFilter(state="failed", since=since)
        counts = Work(
            failed_tasks=_count(lambda: work.task_page(failed, limit=attention.MOST_COUNTED, cursor=None).items),
            schedules=_count(lambda: work.schedules.page(attention.MOST_COUNTED, None)[0]),
            workers=_count(lambda: work.worker_page(limit=attention.MOST_COUNTED, after=None).items),
            agents=_count(lambda: self._agents.list(limit=attention.MOST_COUNTED).items),
            events=_count(lambda: self._events_since(since)),
            jobs=_count(lambda: work.jobs.open_jobs(attention.MOST_COUNTED)),
            audits=_last_seq(self._backend.audit_log()),
        )
        return counts, list(file_findings(self._settings.url, now))

    def _events_since(self, start: int) -> list[JournalEvent]:
        journal, most = self._backend.journal(), attention.MOST_COUNTED
        page = journal.query("PK", tenant=self._settings.tenant, start=start, descending=True, limit=most, raw=True)
        return list(page.events)


def _last_seq(log: AuditLog | None) -> int | None:
    """Return the number of the newest record of the audit file, which has one for each."""
    try:
        return 0 if log is None else next((record.seq for record in log.newest(1)), 0)
    except PostroadError:
        return None


def _notification_queues() -> set[str]:
    """Return the queues of notifications that the environment names, by name or URL; none if it cannot be read."""
    try:
        settings = notification_settings()
    except PostroadError:
        return set()
    return {each.rpartition("/")[2] for each in (settings.push_queue, settings.offline_queue) if each is not None}


def _count(read: Callable[[], Sized]) -> int | None:
    """Return how many are read; None where they may not be, as by a role on AWS that is for queues only."""
    try:
        return len(read())
    except PostroadError:
        return None


def _sum(queues: list[QueueOverview], deleted: QueueCounters) -> QueueCounters:
    counters = [deleted, *(each.counters for each in queues if each.counters is not None)]
    return QueueCounters(*(sum(getattr(each, name) for each in counters) for name in QueueCounters.__struct_fields__))


def _backlog(queues: list[QueueOverview], letters: frozenset[str], outbox: OutboxStatus | str | None) -> Backlog:
    working = [each.stats for each in queues if each.spec.name not in letters]
    return Backlog(
        visible=sum(each.visible for each in working),
        in_flight=sum(each.in_flight for each in working),
        delayed=sum(each.delayed for each in working),
        outbox_pending=0 if outbox is None else None if isinstance(outbox, str) else outbox.pending,
        dead=sum(attention.size(each) for each in queues if each.spec.name in letters),
    )


def _lags(queues: list[QueueOverview], letters: frozenset[str], outbox: OutboxStatus | str | None) -> Lags:
    consumer = max((attention.age(each) for each in queues if each.spec.name not in letters), default=0.0)
    oldest = max((attention.age(each) for each in queues), default=0.0)
    publish = 0.0 if outbox is None else None if isinstance(outbox, str) else outbox.oldest_pending_seconds
    return Lags(None if publish is None else round(publish, 3), round(consumer, 3), round(oldest, 3))
