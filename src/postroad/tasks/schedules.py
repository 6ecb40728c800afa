"""Schedules: when a task runs by itself, by a cron expression or an interval."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Annotated, Any, Literal, Self, get_args

import msgspec
from msgspec import Meta

from postroad.arguments import check, seconds_of
from postroad.errors import ConfigurationError

CatchUp = Literal["none", "one", "all"]
_YEAR_SECONDS = 366 * 86_400
_Interval = Annotated[int, Meta(ge=1, le=_YEAR_SECONDS)]
_INTERVAL = "a whole number of seconds from 1 second to 366 days"
_CRON = (
    "Write five fields (minute, hour, day of month, month, day of week), such as '0 3 * * *' for 03:00 each day; "
    "for seconds use every=."
)
_MOST_CHARACTERS = 200
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
# So late a tick may be and still is not missed: a worker that is restarted takes a moment.
_GRACE_SECONDS = 60
# A gap is searched for its last tick from its end, in growing parts: most schedules have one in the first.
_PARTS = (timedelta(hours=2), timedelta(days=2), timedelta(days=60))
_MOST_AT_ONCE = 100


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a task runs by itself; `@task(schedule=…)` and `@task(every=…)` make it.

    Args:
        cron: A cron expression of five fields; in `tz`.
        every: Seconds between two runs, instead of `cron`; counted from 1970-01-01 in UTC, so that restarts do not
            shift them: 600 means at :00, :10 and so on.
        tz: The time zone of `cron`, a name of the IANA database; UTC by default.
        catch_up: What happens to ticks that no worker was there for: `none` skips them, `one` runs the last of them
            and is the default, `all` runs each.

    Raises:
        ConfigurationError: The expression never fires, the time zone is not known, or the interval is out of bounds.

    Example:
        Schedule(cron="0 3 * * *", tz="Europe/Athens").next_after(datetime.now(UTC))
    """

    cron: str | None = None
    every: int | None = None
    tz: str = "UTC"
    catch_up: CatchUp = "one"

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.every is None):
            raise ConfigurationError(
                "schedule: is given together with every" if self.cron else "schedule: neither it nor every is given",
                field="schedule",
                remedy="Give one of them: schedule='0 3 * * *' or every='10m'.",
            )
        if self.catch_up not in get_args(CatchUp):
            check(self.catch_up, CatchUp, "catch_up", ConfigurationError)
        if self.every is not None:
            check(self.every, _Interval, "every", ConfigurationError, remedy=f"Give {_INTERVAL}.")
            if self.tz != "UTC":
                raise ConfigurationError(
                    "tz: an interval has no time zone", field="tz", remedy="Leave it out, or use schedule= with tz=."
                )
        else:
            _zone(self.tz)
            _check_cron(str(self.cron), self.tz)

    @classmethod
    def of(cls, options: dict[str, Any]) -> Self | None:
        """Take `schedule`, `every`, `tz` and `catch_up` out of the `options` of a task; None if it has no schedule."""
        cron, every, tz, catch_up = (options.pop(name, None) for name in ("schedule", "every", "tz", "catch_up"))
        if isinstance(cron, cls):
            return cron
        if cron is None and every is None:
            for name, value in (("tz", tz), ("catch_up", catch_up)):
                if value is not None:
                    raise ConfigurationError(
                        f"{name}: the task has no schedule",
                        field=name,
                        remedy=f"Give schedule= or every=, too, or leave {name} out.",
                    )
            return None
        given = {"cron": cron, "every": None if every is None else _seconds(every), "tz": tz, "catch_up": catch_up}
        return cls(**{name: value for name, value in given.items() if value is not None})

    @property
    def text(self) -> str:
        """The cron expression, or the interval as in `every 10m`."""
        if self.every is None:
            return str(self.cron)
        size, unit = next((size, unit) for size, unit in _UNITS if self.every % size == 0)
        return f"every {self.every // size}{unit}"

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first tick after `moment`, in UTC; None if there is none for fifty years."""
        return next(self.ticks(moment), None)

    def ticks(self, after: datetime) -> Iterator[datetime]:
        """Yield every tick later than `after`, in UTC.

        An expression with fixed minutes and hours means the time on the wall: a tick in the hour that is skipped
        comes right after it, and one in the hour that occurs twice comes once, at the first. With a `*` in front of
        the minutes or hours it means the time that passes.
        """
        if self.every is not None:
            number = int(after.timestamp() // self.every)
            while True:
                number += 1
                yield datetime.fromtimestamp(number * self.every, UTC)
        assert self.cron is not None
        from cronsim import CronSim

        last = after
        for local in CronSim(self.cron, after.astimezone(_zone(self.tz))):
            # In the second of two equal hours, it also names times of the first.
            if (tick := local.astimezone(UTC)) > last:
                yield tick
                last = tick

    def last_until(self, moment: datetime, *, after: datetime) -> datetime | None:
        """Return the last tick after `after` and not after `moment`, or None."""
        if self.every is not None:
            tick = datetime.fromtimestamp(int(moment.timestamp()) // self.every * self.every, UTC)
            return tick if tick > after else None
        for part in (*_PARTS, moment - after):
            start = max(after, moment - part)
            last = None
            for tick in self.ticks(start):
                if tick > moment:
                    break
                last = tick
            if last is not None or start == after:
                return last
        return None

    def due(self, now: datetime, *, after: datetime) -> tuple[list[datetime], datetime]:
        """Return the ticks after `after` to run at `now`, at most a hundred, and the last tick that is then done."""
        if self.catch_up == "all":
            ticks: list[datetime] = []
            for tick in self.ticks(after):
                if tick > now or len(ticks) == _MOST_AT_ONCE:
                    break
                ticks.append(tick)
            return ticks, ticks[-1] if ticks else after
        last = self.last_until(now, after=after)
        if last is None:
            return [], after
        is_late = (now - last).total_seconds() > _GRACE_SECONDS
        return [] if is_late and self.catch_up == "none" else [last], last


def _seconds(every: object) -> int:
    """Return the seconds of `every`: a number, a text such as `10m`, or a timedelta."""
    found = seconds_of(every, "every", ConfigurationError)
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if not is_number or not 1 <= found <= _YEAR_SECONDS or found != int(found):
        raise ConfigurationError(
            f"every: {every!r} is not {_INTERVAL}",
            field="every",
            remedy="Give seconds, or a text such as '10m' or '2h'.",
        )
    return int(found)


def _zone(name: object) -> tzinfo:
    """Return the time zone, or raise `ConfigurationError`. UTC needs no database."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, available_timezones

    # Children import this module, and need no settings.
    from postroad.settings import nearest

    try:
        return ZoneInfo(name)  # type: ignore[arg-type]  # anything else is refused below
    except (KeyError, ValueError, TypeError, OSError):
        raise ConfigurationError(
            f"tz: {str(name)[:100]!r} is not a time zone",
            field="tz",
            nearest=nearest(str(name)[:100], available_timezones()),
            remedy="Name one such as 'Europe/Athens'; a machine without the IANA database needs the package tzdata.",
        ) from None


@lru_cache(maxsize=4_096)
def _check_cron(cron: str, tz: str) -> None:
    from cronsim import CronSim, CronSimError

    from postroad.telemetry import counted

    fields = cron.split() if len(cron) <= _MOST_CHARACTERS else []
    why = f"it has {counted(len(fields), 'field')}"
    start = datetime(2000, 1, 1, tzinfo=_zone(tz))
    try:
        if len(fields) == 5:
            minute, hour, day, month, weekday = fields
            # Each field on its own first: what is wrong after that is that no month has such a day.
            CronSim(f"{minute} {hour} {day} * {weekday}", start)
            CronSim(f"{minute} {hour} 1 {month} {weekday}", start)
            why = ""
    except (CronSimError, ValueError, AssertionError) as error:
        why = str(error).lower() or "bad field"
    if why:
        shown = cron[:_MOST_CHARACTERS]
        raise ConfigurationError(f"schedule: {shown!r} is not a cron expression: {why}", field="schedule", remedy=_CRON)
    try:
        next(CronSim(cron, start))
    except (CronSimError, StopIteration):
        raise ConfigurationError(
            f"schedule: {cron!r} never fires: none of its months has such a day",
            field="schedule",
            remedy="Name a day that occurs, such as 28, or L for the last day of the month.",
        ) from None
