"""When tasks run by themselves: cron expressions, intervals, daylight saving, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo, reset_tzpath

import pytest
from hypothesis import given, strategies as some

from postroad.errors import ConfigurationError
from postroad.tasks import Schedule, TaskContext, TaskRegistry, task

ATHENS = "Europe/Athens"


def athens(*parts: int, fold: int = 0) -> datetime:
    return datetime(*parts, tzinfo=ZoneInfo(ATHENS), fold=fold).astimezone(UTC)  # type: ignore[misc,arg-type]


def first(schedule: Schedule, after: datetime, count: int) -> list[datetime]:
    return list(islice(schedule.ticks(after), count))


def test_a_cron_expression_means_the_time_on_the_wall_of_its_zone() -> None:
    nightly = Schedule(cron="0 3 * * *", tz=ATHENS)

    assert first(nightly, athens(2026, 7, 1, 12), 1) == [datetime(2026, 7, 2, 0, tzinfo=UTC)]
    assert first(nightly, athens(2026, 11, 15, 12), 1) == [datetime(2026, 11, 16, 1, tzinfo=UTC)]
    assert Schedule(cron="0 3 * * *").next_after(athens(2026, 7, 1)) == datetime(2026, 7, 1, 3, tzinfo=UTC)


def test_a_time_in_the_hour_that_is_skipped_comes_right_after_it_and_once() -> None:
    # At 03:00 on 29 March 2026 the clocks of Athens are put to 04:00.
    before = athens(2026, 3, 28, 12)
    right_after = datetime(2026, 3, 29, 1, tzinfo=UTC)

    for cron in ("0 3 * * *", "30 3 * * *", "0,30 3 * * *"):
        assert first(Schedule(cron=cron, tz=ATHENS), before, 1) == [right_after]
        assert first(Schedule(cron=cron, tz=ATHENS), right_after, 1)[0].astimezone(ZoneInfo(ATHENS)).day == 30
    hourly = first(Schedule(cron="0 * * * *", tz=ATHENS), athens(2026, 3, 29, 1), 3)
    assert [b - a for a, b in pairwise(hourly)] == [timedelta(hours=1)] * 2


def test_a_time_in_the_hour_that_occurs_twice_comes_once_and_an_interval_goes_on() -> None:
    # At 04:00 on 25 October 2026 the clocks of Athens are put back to 03:00.
    nightly = Schedule(cron="30 3 * * *", tz=ATHENS)
    once = athens(2026, 10, 25, 3, 30)

    assert first(nightly, athens(2026, 10, 24, 12), 2) == [once, athens(2026, 10, 26, 3, 30)]
    # From within the second of the two hours, the first one is over.
    assert first(nightly, athens(2026, 10, 25, 3, 10, fold=1), 1) == [athens(2026, 10, 26, 3, 30)]
    assert nightly.last_until(athens(2026, 10, 25, 3, 10, fold=1), after=athens(2026, 10, 24, 12)) == once
    half_hourly = first(Schedule(cron="*/30 * * * *", tz=ATHENS), athens(2026, 10, 25, 2), 7)
    assert [b - a for a, b in pairwise(half_hourly)] == [timedelta(minutes=30)] * 6


def test_an_interval_is_counted_from_1970_so_that_a_restart_does_not_shift_it() -> None:
    every = Schedule(every=600)

    assert first(every, datetime(2026, 11, 16, 2, 55, 1, tzinfo=UTC), 2) == [
        datetime(2026, 11, 16, 3, 0, tzinfo=UTC),
        datetime(2026, 11, 16, 3, 10, tzinfo=UTC),
    ]
    # The tick after a tick is the next one.
    assert every.next_after(datetime(2026, 11, 16, 3, tzinfo=UTC)) == datetime(2026, 11, 16, 3, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "gap"),
    [("* * * * *", 90), ("0 3 * * *", 5), ("0 3 1 * *", 400), ("0 0 29 2 *", 3_000)],
    ids=["minutely", "daily", "monthly", "on leap days"],
)
def test_the_last_tick_of_a_gap_is_the_one_that_all_of_them_end_with(cron: str, gap: int) -> None:
    schedule, now = Schedule(cron=cron, tz=ATHENS), athens(2026, 10, 25, 3, 20, fold=1)
    after = now - timedelta(days=gap)

    last = schedule.last_until(now, after=after)

    assert last is not None
    assert last <= now
    following = schedule.next_after(last)
    assert following is not None
    assert following > now


def test_missed_ticks_are_skipped_run_once_or_run_each() -> None:
    now, after = datetime(2026, 11, 20, 12, tzinfo=UTC), datetime(2026, 11, 16, 12, tzinfo=UTC)
    last = datetime(2026, 11, 20, 3, tzinfo=UTC)
    every_day = [last - timedelta(days=days) for days in (3, 2, 1, 0)]

    def due(catch_up: Any, moment: datetime = now) -> tuple[list[datetime], datetime]:
        return Schedule(cron="0 3 * * *", catch_up=catch_up).due(moment, after=after)

    assert due("none") == ([], last)
    assert due("one") == ([last], last)
    assert due("all") == (every_day, last)
    # A tick that comes a moment late is not missed.
    assert due("none", last + timedelta(seconds=30)) == ([last], last)
    assert due("none", after + timedelta(hours=1)) == ([], after)


def test_very_many_missed_ticks_are_taken_a_hundred_at_a_time() -> None:
    after = datetime(2026, 11, 16, tzinfo=UTC)

    ticks, done_with = Schedule(every=1, catch_up="all").due(after + timedelta(days=30), after=after)

    assert len(ticks) == 100
    assert done_with == ticks[-1] == after + timedelta(seconds=100)


def registered(**options: Any) -> Schedule | None:
    registry = TaskRegistry()
    task("nightly", registry=registry, **options)(lambda input, ctx: None)
    return registry.get("nightly").schedule


def test_a_task_has_its_schedule() -> None:
    assert registered() is None
    assert registered(schedule="0 3 * * *", tz=ATHENS, catch_up="all") == Schedule(
        cron="0 3 * * *", tz=ATHENS, catch_up="all"
    )
    for every in ("10m", 600, 600.0, timedelta(minutes=10), "600s"):
        assert registered(every=every) == Schedule(every=600)


def test_a_command_may_have_a_schedule() -> None:
    registry = TaskRegistry()
    registry.command("prune", ["/bin/true"], every="1h")

    assert registry.get("prune").schedule == Schedule(every=3_600)


def test_a_schedule_is_shown_as_it_was_written() -> None:
    shown = [Schedule(every=each).text for each in (90, 600, 7_200, 172_800)]

    assert shown == ["every 90s", "every 10m", "every 2h", "every 2d"]
    assert Schedule(cron="0 3 * * *").text == "0 3 * * *"


def test_utc_needs_no_database_of_time_zones() -> None:
    try:
        reset_tzpath(to=())
        ZoneInfo.clear_cache()

        assert Schedule(cron="7 3 * * *").next_after(datetime(2026, 11, 16, tzinfo=UTC)) == datetime(
            2026, 11, 16, 3, 7, tzinfo=UTC
        )
    finally:
        reset_tzpath()


@pytest.mark.parametrize(
    ("options", "field", "says"),
    [
        ({"schedule": "0 0 30 2 *"}, "schedule", "never fires"),
        ({"schedule": "0 0 31 2,4,6 *"}, "schedule", "never fires"),
        ({"schedule": "61 * * * *"}, "schedule", "bad minute"),
        ({"schedule": "0 0 * * MOON"}, "schedule", "bad day-of-week"),
        ({"schedule": "0 0 32 * *"}, "schedule", "bad day-of-month"),
        ({"schedule": "0 0 * 13 *"}, "schedule", "bad month"),
        ({"schedule": "* * * *"}, "schedule", "has 4 fields"),
        ({"schedule": "0 * * * * *"}, "schedule", "has 6 fields"),
        ({"schedule": ""}, "schedule", "has 0 fields"),
        ({"schedule": "@daily"}, "schedule", r"has 1 field\b"),
        ({"schedule": 3}, "schedule", "not a cron expression"),
        ({"schedule": "9" * 5_000 + " * * * *"}, "schedule", "not a cron expression"),
        ({"schedule": "0 3 * * *", "tz": "Europe/Atens"}, "tz", "not a time zone"),
        ({"schedule": "0 3 * * *", "tz": "../../etc/passwd"}, "tz", "not a time zone"),
        ({"schedule": "0 3 * * *", "tz": "Europe"}, "tz", "not a time zone"),
        ({"schedule": "0 3 * * *", "tz": 2}, "tz", "not a time zone"),
        ({"schedule": "0 3 * * *", "catch_up": "some"}, "catch_up", "'some'"),
        ({"schedule": "0 3 * * *", "every": "10m"}, "schedule", "together with every"),
        ({"every": "0s"}, "every", "'0s' is not"),
        ({"every": "0.5s"}, "every", "is not"),
        ({"every": "1.5s"}, "every", "is not"),
        ({"every": -1}, "every", "is not"),
        ({"every": float("nan")}, "every", "is not"),
        ({"every": float("inf")}, "every", "is not"),
        ({"every": True}, "every", "is not"),
        ({"every": "367d"}, "every", "is not"),
        ({"every": "now and then"}, "every", "is not"),
        ({"every": "10m", "tz": ATHENS}, "tz", "no time zone"),
        ({"tz": ATHENS}, "tz", "no schedule"),
        ({"catch_up": "all"}, "catch_up", "no schedule"),
    ],
    ids=str,
)
def test_what_cannot_be_a_schedule_is_refused_with_its_field_and_a_remedy(
    options: dict[str, Any], field: str, says: str
) -> None:
    registry = TaskRegistry()

    with pytest.raises(ConfigurationError, match=says) as refused:
        task("nightly", registry=registry, **options)(lambda input, ctx: None)

    assert refused.value.field == field
    assert refused.value.remedy
    assert registry.names() == []


def test_a_task_that_needs_an_argument_cannot_run_by_itself() -> None:
    registry = TaskRegistry()

    def scrape(ctx: TaskContext, depth: int = 2, *, store_id: str) -> None: ...

    with pytest.raises(ConfigurationError, match="needs the argument 'store_id'") as refused:
        registry.register(scrape, every="10m")

    assert refused.value.field == "schedule"
    assert registry.names() == []


def test_a_task_whose_arguments_have_defaults_runs_by_itself() -> None:
    registry = TaskRegistry()

    def scrape(ctx: TaskContext, depth: int = 2, **further: int) -> None: ...

    registry.register(scrape, every="10m")

    assert registry.get("scrape").schedule == Schedule(every=600)


def test_a_misspelt_time_zone_is_told_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Schedule(cron="0 3 * * *", tz="Europe/Atens")

    assert refused.value.nearest == ATHENS


FIELD = some.text("0123456789*/-,#LWMONJA", min_size=1, max_size=8)


@given(some.lists(FIELD, min_size=5, max_size=5).map(" ".join))
def test_any_text_either_fires_or_is_refused(cron: str) -> None:
    try:
        found = Schedule(cron=cron, tz=ATHENS)
    except ConfigurationError:
        return

    assert found.next_after(datetime(2026, 11, 16, tzinfo=UTC)) is not None


@pytest.mark.parametrize("cron", ["30 3 * * *", "*/20 3 * * *", "15,45 1-4 * * *", "0 */2 * * *", "*/30 * * * *"])
@pytest.mark.parametrize(
    ("tz", "day"),
    [(ATHENS, (2026, 3, 29)), (ATHENS, (2026, 10, 25)), ("America/New_York", (2026, 3, 8)), ("UTC", (2026, 3, 29))],
)
def test_a_restart_at_any_moment_of_a_change_of_the_clock_gives_the_same_ticks(
    cron: str, tz: str, day: tuple[int, int, int]
) -> None:
    schedule, begin = Schedule(cron=cron, tz=tz), datetime(*day, tzinfo=UTC) - timedelta(hours=12)
    ticks = [tick for tick in first(schedule, begin, 100) if tick < begin + timedelta(days=2)]

    for minutes in range(0, 36 * 60, 10):
        after = begin + timedelta(minutes=minutes)
        assert schedule.next_after(after) == next(tick for tick in ticks if tick > after)
