"""Charts, texts and the counts behind them, without a browser."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroad import QueueSpec
from postroad.dashboard import flow, level
from postroad.dashboard.charts import area, bars, spark
from postroad.dashboard.texts import NOTHING, ago, error_parts, number, seconds, size, with_code
from postroad.http.audits import action_of
from postroad.http.samples import STEP_SECONDS, STEPS, QueueRates
from postroad.queues import QueueCounters, QueueOverview, QueueStats

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def sent(**totals: int) -> list[QueueOverview]:
    """Queues to which so many messages were sent since they were made."""
    return [
        QueueOverview(
            spec=QueueSpec(name),
            stats=QueueStats(0, 0, 0, None, 0),
            counters=QueueCounters(total, 0, 0, 0, 0, 0, 0),
        )
        for name, total in totals.items()
    ]


def test_bars_leave_out_what_is_zero_and_keep_the_smallest_visible() -> None:
    path, top = bars([0, 1, 1_000], 300, 100)

    assert top == 1_000
    assert path == "M100 100V98h98V100zM200 100V0h98V100z"


@pytest.mark.parametrize(
    ("most", "top"), [(0, 1), (1, 1), (2, 2), (3, 3), (4, 5), (7, 10), (11, 20), (220, 300), (420, 500), (999, 1_000)]
)
def test_the_scale_ends_at_a_round_number(most: int, top: int) -> None:
    assert bars([most], 10, 10)[1] == top
    assert area([most, 0], 10, 10)[1] == top


def test_a_chart_says_its_figure_and_its_latest_value() -> None:
    flowing = flow("sent", "Sent", [1_000, 234, 7], 3_600)
    waiting = level("backlog", "Backlog", [5, 4, 3], 9)

    assert flowing.label == "Sent: 1,241 in the last hour, 7 latest"
    assert waiting.label == "Backlog: 9 now, 9 latest"
    assert list(waiting.values) == [5, 4, 9]
    assert flow("sent", "Sent", [], 300).label == "Sent: 0 in the last 5 min, 0 latest"
    assert spark([0, 0]) == ""


def test_texts_are_as_people_read_them() -> None:
    assert [seconds(each) for each in (None, 0.4, 59, 61, 7_300, 200_000)] == [
        NOTHING,
        "0 s",
        "59 s",
        "1 min",
        "2 h",
        "2 d",
    ]
    assert [number(each) for each in (None, 1_234_567)] == [NOTHING, "1,234,567"]
    assert [size(each) for each in (12, 1_048_576, 5_000_000_000)] == ["12 B", "1 MB", "5 GB"]
    assert "3 min ago" in ago(NOW - timedelta(minutes=3), NOW)
    assert 'datetime="2026-03-01T12:00:05Z"' in ago("2026-03-01T12:00:05.250Z", NOW)
    assert "in 5 s" in ago("2026-03-01T12:00:05.250Z", NOW)
    assert with_code("run `a-<b>` & wait") == "run <code>a-&lt;b&gt;</code> &amp; wait"
    assert with_code("run `a --<b>`") == "run <code><span>a</span> <span>--&lt;b&gt;</span></code>"
    assert with_code("5` long") == "5` long"


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        ("ValueError: no [ledger.py:book]", ("ValueError", "no", "ledger.py:book")),
        ("app.errors.Refused: 503: later", ("app.errors.Refused", "503: later", "")),
        ("it failed: badly", ("it failed: badly", "", "")),
        (None, ("no error recorded", "", "")),
        ("", ("no error recorded", "", "")),
    ],
)
def test_an_error_has_a_type_a_message_and_a_place(error: str | None, parts: tuple[str, str, str]) -> None:
    assert error_parts(error) == parts


def test_rates_count_what_was_sent_in_each_step_from_the_first_look_on() -> None:
    rates = QueueRates()
    rates.add(sent(orders=100), 0)
    rates.add(sent(orders=103, mails=2), 1)
    rates.add(sent(orders=104, mails=2), STEP_SECONDS + 1)

    assert rates.of("orders", STEP_SECONDS + 2)[-2:] == [3, 1]
    assert rates.of("mails", STEP_SECONDS + 2)[-2:] == [2, 0]
    assert rates.of("unknown", STEP_SECONDS + 2) == [0] * STEPS
    assert rates.busiest(1) == ["orders"]
    rates.add(sent(orders=1), STEP_SECONDS * (STEPS + 2))
    assert sum(rates.of("orders", STEP_SECONDS * (STEPS + 2))) == 0


@pytest.mark.parametrize(
    ("method", "template", "action"),
    [
        ("PUT", "/queues/{queue}", "queue.create"),
        ("DELETE", "/queues/{queue}", "queue.delete"),
        ("POST", "/ui/queues/{queue}/messages", "queue.send"),
        ("DELETE", "/tokens/{name}", "token.revoke"),
        ("POST", "/jobs/{job}/cancel", "job.cancel"),
        ("POST", "/ui/schedules/{schedule}/pause", "schedule.pause"),
        ("POST", "/logout", "logout"),
    ],
)
def test_changes_have_the_names_of_their_routes(method: str, template: str, action: str) -> None:
    assert action_of(method, template) == action
