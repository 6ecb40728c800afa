"""Consumers whose effects lie outside every transaction: begun, finished, and fenced by tokens."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.inbox.fixtures import InboxFixture
from tests.inbox.mail import event, held, send

from postroad import Backend, Queue, QueueSpec, Retryable
from postroad.inbox import Consumer, ConsumeReport, DomainEvent, Effect, EffectNotDone
from postroad.queues.markers import read_dead


class Rail:
    """The world outside: remembers every call by its key."""

    def __init__(self) -> None:
        self.calls: list[Effect] = []
        self.raises: list[BaseException] = []

    def __call__(self, event: DomainEvent, effect: Effect) -> None:
        self.calls.append(effect)
        if self.raises:
            raise self.raises.pop(0)


def crash_during(fixture: InboxFixture, sent: DomainEvent) -> Effect:
    """Leave a record of an attempt whose process died, and whose lease has ended."""
    effect = fixture.inbox.begin("gateway", sent.event_id)
    fixture.rows("UPDATE inbox SET leaseuntil = startedat")
    return effect


def test_an_effect_is_made_once_with_a_key_of_its_own(fixture: InboxFixture, queue: Queue) -> None:
    sent, rail = event("tr_1"), Rail()
    send(queue, sent)
    send(queue, sent, copy="again")
    consumer = Consumer(queue, rail, name="gateway", inbox=fixture.inbox, effects="external")

    reports = [consumer.run_once(), consumer.run_once()]

    assert sum(report.handled for report in reports) == 1
    assert sum(report.duplicates for report in reports) == 1
    assert [(call.status, call.idempotency_key) for call in rail.calls] == [("new", f"gateway:{sent.event_id}")]
    assert fixture.inbox.processed("gateway", [sent.event_id]) == {sent.event_id}


def test_an_unknown_outcome_goes_to_the_dead_letters_and_is_listed(
    fixture: InboxFixture, queue: Queue, dead_letters: Queue
) -> None:
    sent, rail = event("tr_1"), Rail()
    crash_during(fixture, sent)
    send(queue, sent)
    consumer = Consumer(queue, rail, name="gateway", inbox=fixture.inbox, effects="external", dead_letters=dead_letters)

    report = consumer.run_once()

    assert report == ConsumeReport(received=1, dead=1)
    assert rail.calls == []
    (letter,) = dead_letters.peek()
    marker = read_dead(letter.attributes)
    assert marker is not None
    assert marker.reason == "unknown-outcome"
    assert [effect.event_id for effect in fixture.inbox.unknown(consumer="gateway")] == [sent.event_id]


def test_an_unknown_outcome_may_be_tried_again_under_the_same_key(fixture: InboxFixture, queue: Queue) -> None:
    sent, rail = event("tr_1"), Rail()
    before = crash_during(fixture, sent)
    send(queue, sent)
    consumer = Consumer(queue, rail, name="gateway", inbox=fixture.inbox, effects="external", on_unknown="retry")

    report = consumer.run_once()

    (call,) = rail.calls
    assert report == ConsumeReport(received=1, handled=1)
    assert (call.status, call.attempt, call.idempotency_key) == ("unknown", 2, before.idempotency_key)
    assert call.token > before.token
    assert not fixture.inbox.finish(before)


def test_an_effect_that_another_makes_now_is_given_back(fixture: InboxFixture, queue: Queue) -> None:
    sent, rail = event("tr_1"), Rail()
    fixture.inbox.begin("gateway", sent.event_id, lease=60)
    send(queue, sent)
    consumer = Consumer(queue, rail, name="gateway", inbox=fixture.inbox, effects="external")

    report = consumer.run_once()

    assert report == ConsumeReport(received=1, released=1)
    assert rail.calls == []
    assert held(queue) == 1


def test_an_effect_that_surely_was_not_made_comes_again_as_new(fixture: InboxFixture, queue: Queue) -> None:
    rail = Rail()
    rail.raises = [EffectNotDone("the rail refused the connection")]
    send(queue, event("tr_1"))
    consumer = Consumer(queue, rail, name="gateway", inbox=fixture.inbox, effects="external")

    first, second = consumer.run_once(), consumer.run_once(wait=2.0)

    assert (first.failed, second.handled) == (1, 1)
    assert [call.status for call in rail.calls] == ["new", "new"]
    assert rail.calls[0].token < rail.calls[1].token


def test_a_handler_that_asks_for_another_attempt_makes_its_effect_again(fixture: InboxFixture, queue: Queue) -> None:
    rail = Rail()
    rail.raises.append(Retryable("the gateway is busy", after=0))
    send(queue, event("tr_1"))
    consumer = Consumer(queue, rail, name="gateway", inbox=fixture.inbox, effects="external")

    first, second = consumer.run_once(), consumer.run_once()

    assert (first.failed, second.handled) == (1, 1)
    assert [call.status for call in rail.calls] == ["new", "new"]


@pytest.mark.parametrize(("on_unknown", "statuses"), [("retry", ["new", "unknown"]), ("dead_letter", ["new"])])
def test_a_handler_that_raises_leaves_an_unknown_outcome(
    fixture: InboxFixture, queue: Queue, dead_letters: Queue, on_unknown: Any, statuses: list[str]
) -> None:
    rail = Rail()
    rail.raises = [TimeoutError("no answer from the rail")]
    send(queue, event("tr_1"))
    consumer = Consumer(
        queue,
        rail,
        name="gateway",
        inbox=fixture.inbox,
        effects="external",
        on_unknown=on_unknown,
        dead_letters=dead_letters,
    )

    first, second = consumer.run_once(), consumer.run_once(wait=2.0)

    assert first.failed == 1
    assert (second.handled, second.dead) == ((1, 0) if on_unknown == "retry" else (0, 1))
    assert [call.status for call in rail.calls] == statuses


def test_a_worker_that_comes_late_acks_nothing(fixture: InboxFixture, queue: Queue) -> None:
    sent = event("tr_1")
    send(queue, sent)

    def slow(event: DomainEvent, effect: Effect) -> None:
        fixture.rows("UPDATE inbox SET leaseuntil = startedat")
        fixture.inbox.begin("gateway", event.event_id)

    consumer = Consumer(queue, slow, name="gateway", inbox=fixture.inbox, effects="external")

    report = consumer.run_once()

    assert report == ConsumeReport(received=1, failed=1)
    assert fixture.inbox.processed("gateway", [sent.event_id]) == set()


def test_the_lease_of_a_long_effect_is_renewed(fixture: InboxFixture, backend: Backend) -> None:
    queue = backend.create_queue(QueueSpec("gateway-usdc.fifo", fifo=True, visibility=2))
    sent, seen = event("tr_1"), threading.Event()
    send(queue, sent)

    def slow(event: DomainEvent, effect: Effect) -> None:
        # The lease is one second; only a renewal lets it end later than it did at first.
        first = fixture.rows("SELECT leaseuntil FROM inbox")
        for _ in range(400):
            if fixture.rows("SELECT leaseuntil FROM inbox") != first:
                seen.set()
                return
            threading.Event().wait(0.01)

    consumer = Consumer(queue, slow, name="gateway", inbox=fixture.inbox, effects="external")

    report = consumer.run_once()

    assert seen.is_set()
    assert report.handled == 1
