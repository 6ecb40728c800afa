"""Replaying: what was sent is published again under its id, per key in its order, and the rows stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.outbox.fixtures import OutboxFixture

from postroad.errors import InvalidInput, OutcomeUnknown, RowRejected, TargetUnavailable
from postroad.outbox import DispatcherConfig, DomainEvent, OutboxDispatcher, ReplayReport
from postroad.queues import OutgoingMessage, SendResult

WHO: dict[str, Any] = {"by": "ada", "reason": "sent to the wrong topic"}
EVER = datetime(2020, 1, 1, tzinfo=UTC)


class Target:
    """A topic that keeps what it gets and refuses what it is told to."""

    def __init__(self, refusing: dict[str, Exception] | None = None) -> None:
        self.got: list[OutgoingMessage] = []
        self._refusing = refusing or {}

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        return [self._take(message) for message in messages]

    def _take(self, message: OutgoingMessage) -> SendResult:
        error = self._refusing.get(str(message.dedup_id))
        if error is not None:
            return SendResult(ok=False, error=error)
        self.got.append(message)
        return SendResult(ok=True, message_id=str(len(self.got)))

    def ids(self, group: str | None = None) -> list[str]:
        return [str(message.dedup_id) for message in self.got if group in (None, message.group)]


def sent(fixture: OutboxFixture, count: int, *, keys: int = 1, **fields: Any) -> list[DomainEvent]:
    """Events that a dispatcher has sent."""
    events = [fixture.add(key={"transferId": f"tr_{n % keys}"}, payload={"n": n}, **fields) for n in range(count)]
    OutboxDispatcher(fixture.outbox, Target(), DispatcherConfig(poll=0.05), metrics=CollectorRegistry()).drain()
    return events


def test_sent_events_are_published_again_as_they_were_and_their_rows_stay_as_they_are(fixture: OutboxFixture) -> None:
    events = sent(fixture, 250, keys=3)
    rows = fixture.run("SELECT * FROM outbox ORDER BY seq")
    target = Target()
    told: list[int] = []

    report = fixture.outbox.replay(target, since=EVER, progress=told.append, **WHO)

    assert report == ReplayReport(selected=250, replayed=250)
    for key in range(3):
        assert target.ids(f"tr_{key}") == [str(event.event_id) for event in events[key::3]]
    assert sorted(target.ids()) == sorted(str(event.event_id) for event in events)
    first = next(message for message in target.got if message.dedup_id == str(events[0].event_id))
    assert first.body == events[0].to_json()
    assert first.attributes["Seq"] == "1"
    assert fixture.run("SELECT * FROM outbox ORDER BY seq") == rows
    assert told == [100, 200, 250]
    entries = fixture.outbox.audit(limit=1_000)
    assert {entry.event_id for entry in entries} == {event.event_id for event in events}
    assert {(e.actor, e.action, e.reason, e.before, e.after) for e in entries} == {
        ("ada", "replay", WHO["reason"], "SENT", "SENT")
    }


def test_only_sent_events_that_fit_are_replayed(fixture: OutboxFixture) -> None:
    (early,) = sent(fixture, 1)
    (late,) = sent(fixture, 1, type="orders.placed")
    fixture.set(early, updatedat="2026-01-31T08:00:00.000Z")
    fixture.set(late, updatedat="2026-01-31T09:00:00.000Z")
    for state in ("PENDING", "FAILED", "PARKED", "SKIPPED"):
        fixture.set(fixture.add(key={"k": state}), state=state)
    nine = datetime(2026, 1, 31, 9, tzinfo=UTC)

    def replayed(**wanted: Any) -> list[str]:
        target = Target()
        assert fixture.outbox.replay(target, dry_run=True, **wanted, **WHO).selected == (
            fixture.outbox.replay(target, **wanted, **WHO).replayed
        )
        return target.ids()

    both = [str(early.event_id), str(late.event_id)]
    assert replayed(since=EVER) == both
    assert replayed(since=nine) == both[1:]
    assert replayed(until=nine) == both[:1]
    assert replayed(since=nine - timedelta(hours=1), until=nine + timedelta(seconds=1)) == both
    assert replayed(type="orders.placed") == both[1:]
    assert replayed(key="tr_0") == both
    assert replayed(key={"transferId": "tr_0"}, type="none") == []


@pytest.mark.parametrize("error", [RowRejected("no"), OutcomeUnknown("nobody knows"), ZeroDivisionError("bug")])
def test_a_failed_event_stops_its_key_and_no_other(fixture: OutboxFixture, error: Exception) -> None:
    events = sent(fixture, 300, keys=2)
    target = Target({str(events[10].event_id): error})

    report = fixture.outbox.replay(target, since=EVER, **WHO)

    assert (report.selected, report.replayed, report.failed, report.held) == (300, 155, 1, 144)
    assert str(error) in str(report.last_error)
    assert target.ids("tr_0") == [str(event.event_id) for event in events[:10:2]]
    assert target.ids("tr_1") == [str(event.event_id) for event in events[1::2]]
    assert len(fixture.outbox.audit(limit=1_000)) == 155


def test_a_topic_that_takes_nothing_ends_the_replay_and_what_went_before_is_in_the_audit(
    fixture: OutboxFixture,
) -> None:
    events = sent(fixture, 150)
    target = Target({str(events[120].event_id): TargetUnavailable("no such topic")})

    with pytest.raises(TargetUnavailable, match="no such topic") as caught:
        fixture.outbox.replay(target, since=EVER, **WHO)

    assert "replay again" in caught.value.remedy
    assert target.ids() == [str(event.event_id) for event in events[:120]]
    assert len(fixture.outbox.audit(limit=1_000)) == 120


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({}, ValueError),
        ({"since": EVER, "by": " "}, ValueError),
        ({"since": EVER, "reason": ""}, ValueError),
        ({"since": datetime(2026, 1, 31)}, InvalidInput),
    ],
)
def test_a_replay_that_is_not_clear_is_refused(
    fixture: OutboxFixture, wanted: dict[str, Any], error: type[Exception]
) -> None:
    sent(fixture, 1)
    target = Target()

    with pytest.raises(error):
        fixture.outbox.replay(target, **{**WHO, **wanted})

    assert (target.got, fixture.outbox.audit()) == ([], [])
