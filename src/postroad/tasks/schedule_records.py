"""What is stored about schedules, and what operators do with them: list, pause, resume and run.

A schedule is one item, changed by conditional writes: its ticks are claimed there, so each is run once however many
workers there are. A claimed tick is owed until its run is submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple, Self

import msgspec

from postroad.errors import ConfigurationError, NotFound
from postroad.events import uuid7
from postroad.items import Item, Items
from postroad.ports import Store
from postroad.settings import nearest
from postroad.tasks.messages import log_event, scan, tenant_and_app
from postroad.tasks.producer import TaskProducer
from postroad.tasks.registry import NAME
from postroad.tasks.schedules import Schedule

SET_BACK_SECONDS: Final = 86_400
"""A clock that was ahead by more than this was wrong: schedules go on from now instead of waiting for that time."""
_PAGE = 500


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is stored about one schedule. Times are seconds since 1970."""

    task: str
    schedule: Schedule
    queue: str
    after: int
    """The last tick that is done with; those after it are to come."""
    paused: bool = False
    owed: tuple[int, ...] = ()
    """Ticks that were claimed, and whose runs may not be submitted yet."""
    last_at: int | None = None
    last_request_id: str | None = None

    def next_at(self) -> datetime | None:
        """Return the next tick; None while it is paused."""
        return None if self.paused else self.schedule.next_after(datetime.fromtimestamp(self.after, UTC))

    def claimed(self, now: datetime) -> Self | None:
        """Return the state that owes the ticks that are due, and None if none is."""
        if self.paused:
            return None
        after = datetime.fromtimestamp(self.after, UTC)
        ticks, done_with = self.schedule.due(now, after=after)
        if done_with == after:
            return None
        owed = tuple(map(_epoch, ticks))
        state = msgspec.structs.replace(self, after=_epoch(done_with), owed=owed)
        return state.ran(owed[-1], tick_id(self.task, owed[-1])) if owed else state

    def settled(self) -> Self:
        """Return the state of a schedule whose runs are all submitted."""
        return msgspec.structs.replace(self, owed=())

    def ran(self, at: int, request_id: str) -> Self:
        return msgspec.structs.replace(self, last_at=at, last_request_id=request_id)

    def defined(self, schedule: Schedule, queue: str, now: datetime) -> Self:
        """Return the state under a new definition. Other times begin now, as nothing was missed under them."""
        same_times = (schedule.cron, schedule.every, schedule.tz) == (
            self.schedule.cron,
            self.schedule.every,
            self.schedule.tz,
        )
        after = self.after if same_times and not self.is_ahead(now) else _epoch(now)
        return msgspec.structs.replace(self, schedule=schedule, queue=queue, after=after)

    def is_ahead(self, now: datetime) -> bool:
        """Return whether its last tick is so far ahead that a clock must have been wrong."""
        return self.after > _epoch(now) + SET_BACK_SECONDS


def tick_id(task: str, tick: int) -> str:
    return f"schedule-{task}-{datetime.fromtimestamp(tick, UTC):%Y%m%dT%H%M%SZ}"


def schedule_key(tenant: str, name: str) -> str:
    """Return the key of a schedule's item; with an empty name, the prefix of all schedules of the tenant."""
    return f"{tenant}/SCHEDULE#{name}"


def _epoch(moment: datetime) -> int:
    return int(moment.timestamp())


_decode_state = msgspec.json.Decoder(ScheduleState).decode


class KnownSchedule(NamedTuple):
    """A schedule as it was last read or written, with the version that the next write expects."""

    state: ScheduleState
    version: int


class ScheduleShown(msgspec.Struct, frozen=True):
    """One schedule, as CLI and HTTP show it."""

    name: str
    task: str
    schedule: str
    tz: str
    paused: bool
    next_at: datetime | None
    """None while it is paused. A time in the past: no worker with the role `scheduler` knows it."""
    last_at: datetime | None
    last_request_id: str | None


class Schedules:
    """The schedules that workers have registered: lists, pauses, resumes and runs them.

    Args:
        backend: The store, as `connect()` returns it.
        tenant_id: The tenant of the tasks; by default that of the settings.
        app: The app of the recorded events; by default that of the settings.

    Example:
        Schedules(backend).pause("nightly")
    """

    def __init__(self, backend: Store, *, tenant_id: str | None = None, app: str | None = None) -> None:
        self._backend = backend
        self._tenant, self._app = tenant_and_app(tenant_id, app)
        self._items: Items = backend.items()

    def list_all(self) -> list[ScheduleShown]:
        """Return all schedules, sorted by name."""
        return [_shown(name, known.state) for name, known in read_all(self._items, self._tenant).items()]

    def page(self, limit: int = 100, after: str | None = None) -> tuple[list[ScheduleShown], str | None]:
        """Return the schedules behind the name `after`, at most `limit`, and the last name if there are more."""
        prefix = schedule_key(self._tenant, "")
        found = self._items.scan(prefix, limit=limit, cursor=None if after is None else prefix + after)
        shown = [_shown(name, known.state) for name, known in _readable(found.items, prefix)]
        return shown, None if found.cursor is None else found.cursor.removeprefix(prefix)

    def pause(self, name: str) -> ScheduleShown:
        """Let it run no more until it is resumed; a paused schedule stays paused."""
        return self._change(name, lambda state: msgspec.structs.replace(state, paused=True))

    def resume(self, name: str) -> ScheduleShown:
        """Let it run again, from its next tick on; what the pause skipped is not caught up on."""
        goes_on = {"paused": False, "after": _epoch(self._backend.clock.now())}
        return self._change(name, lambda state: msgspec.structs.replace(state, **goes_on) if state.paused else state)

    def run(self, name: str) -> ScheduleShown:
        """Submit one run now, besides those of its ticks, even while it is paused."""
        state = self._read(name).state
        producer = TaskProducer(self._backend, queue=state.queue, tenant_id=self._tenant, app=self._app)
        handle = producer.submit(state.task, request_id=f"schedule-{name}-run-{uuid7()}")
        now = int(self._backend.clock.now().timestamp())
        return self._change(name, lambda state: state.ran(now, handle.request_id))

    def _read(self, name: str) -> KnownSchedule:
        # A name that no task can have is not found either.
        item = self._items.get(schedule_key(self._tenant, name)) if NAME.fullmatch(name) else None
        if item is None:
            raise NotFound(
                f"there is no schedule {name[:100]!r}",
                nearest=nearest(name[:100], read_all(self._items, self._tenant)),
                remedy="`postroad schedule list` shows all; a worker registers those of its tasks when it starts.",
            )
        return known_schedule(item)

    def _change(self, name: str, change: Callable[[ScheduleState], ScheduleState]) -> ScheduleShown:
        while True:
            state, version = self._read(name)
            changed = change(state)
            if changed == state:
                return _shown(name, state)
            value = msgspec.json.encode(changed)
            if self._items.put(schedule_key(self._tenant, name), value, expect=version).ok:
                return _shown(name, changed)


def _shown(name: str, state: ScheduleState) -> ScheduleShown:
    return ScheduleShown(
        name=name,
        task=state.task,
        schedule=state.schedule.text,
        tz=state.schedule.tz,
        paused=state.paused,
        next_at=state.next_at(),
        last_at=None if state.last_at is None else datetime.fromtimestamp(state.last_at, UTC),
        last_request_id=state.last_request_id,
    )


def read_all(items: Items, tenant: str) -> dict[str, KnownSchedule]:
    prefix = schedule_key(tenant, "")
    return dict(_readable(scan(items, prefix, limit=_PAGE), prefix))


def _readable(items: Iterable[Item], prefix: str) -> Iterator[tuple[str, KnownSchedule]]:
    """Yield the name and the schedule of each item. One that only another machine can read is logged and left out."""
    for item in items:
        name = item.key.removeprefix(prefix)
        try:
            yield name, known_schedule(item)
        except (ConfigurationError, msgspec.DecodeError) as error:
            # Its time zone is not known here, or a later version wrote it.
            log_event("schedule_failed", schedule=name, error=error)


def known_schedule(item: Item) -> KnownSchedule:
    return KnownSchedule(_decode_state(item.value), item.version)
