"""The clock of the database is set back an hour: nothing waits for that hour to pass again, and nothing comes early."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.outbox.dispatching.conftest import QUICK, MakeDispatcher
from tests.outbox.dispatching.publishers import Recorder, failing_times
from tests.outbox.fixtures import OutboxFixture
from tests.waiting import eventually


def set_back(fixture: OutboxFixture) -> None:
    """Let an hour less be past: all stored times lie an hour later, as after a step of the clock."""
    if fixture.dsn.startswith("sqlite"):
        later = "strftime('%Y-%m-%dT%H:%M:%fZ', {0}, '3600 seconds')"
    else:
        later = "{0} + interval '1 hour'"
    columns = ("next_attempt", "createdat", "updatedat", "lease_until")
    fixture.run("UPDATE outbox SET " + ", ".join(f"{each} = {later.format(each)}" for each in columns))


def test_rows_that_were_added_before_are_published_at_once_and_in_order(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    for n in range(4):
        fixture.add(payload={"n": n})
    set_back(fixture)
    for n in range(4, 6):
        fixture.add(payload={"n": n})

    report = dispatcher_of(fixture.outbox, recorder).drain()

    assert report.sent == 6
    assert recorder.numbers() == list(range(6))


def test_a_retry_waits_for_its_pause_and_not_for_the_hour(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    publisher, config = Recorder(fail=failing_times(1, 1, TimeoutError("no answer"))), replace(QUICK, backoff=(1.5,))
    for n in (1, 2):
        fixture.add(payload={"n": n})
    assert dispatcher_of(fixture.outbox, publisher, config).run_once().retried == 1
    set_back(fixture)

    stepped_at = time.monotonic()
    dispatcher_of(fixture.outbox, publisher, config).start()
    eventually(lambda: fixture.outbox.status().sent == 2)

    assert time.monotonic() - stepped_at >= 1.4
    assert publisher.numbers() == [1, 2]


def test_a_row_that_its_application_put_off_is_not_published_early(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    put_off = fixture.add(payload={"n": 1})
    fixture.set(put_off, next_attempt=(datetime.now(UTC) + timedelta(minutes=10)).isoformat(timespec="milliseconds"))
    fixture.add(key={"transferId": "tr_2"}, payload={"n": 2})
    set_back(fixture)

    dispatcher = dispatcher_of(fixture.outbox, recorder)
    reports = [dispatcher.drain(), dispatcher.drain()]

    assert [report.sent for report in reports] == [1, 0]
    assert recorder.numbers("tr_2") == [2]


def test_a_row_that_was_redriven_before_is_published_at_once(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    failed = fixture.add(payload={"n": 1})
    fixture.set(failed, state="FAILED", lasterror="no such topic")
    fixture.outbox.redrive([failed.event_id], by="kim", reason="the topic exists now")
    set_back(fixture)

    assert dispatcher_of(fixture.outbox, recorder).drain().sent == 1
