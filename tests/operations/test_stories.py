"""`why` for events, messages and pushes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.notifications.people import Provider, missed

from postroad import Backend, BusConfig, Delivery, OutgoingMessage, QueueSpec, connect, event
from postroad.agents import AgentEvent
from postroad.errors import NotFound
from postroad.journal import Story
from postroad.notifications import NotificationStore, NotificationWorker, OfflineProcessor, TokenResult
from postroad.notifications.devices import offline_push_id
from postroad.operations import purge, redrive, why
from postroad.outbox import DomainEvent, Outbox
from postroad.testing.clock import FakeClock

AT_ONCE = BusConfig(wait_time_seconds=0)


@event(name="stories.placed")
class Placed:
    order_id: str


@event(name="stories.paid")
class Paid:
    order_id: str


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def backend(tmp_path: Path, clock: FakeClock) -> Iterator[Backend]:
    with connect(f"sqlite:///{tmp_path}/postroad.db", clock=clock) as backend:
        backend.create_queue(QueueSpec("dead"))
        backend.create_queue(QueueSpec("jobs", dead_letter="dead", max_receives=2, visibility=30))
        yield backend


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Backend]:
    """A backend on the machine's clock, by which buses receive."""
    with connect(f"sqlite:///{tmp_path}/live.db") as backend:
        yield backend


def told(backend: Backend, name: object) -> Story:
    return why(backend, str(name), tenant="default", app="postroad", agents=lambda: backend.agents().store)


def send(backend: Backend, body: str = "secret-body", **options: Any) -> str:
    [sent] = backend.queue("jobs").send([OutgoingMessage(body, **options)])
    assert sent.message_id is not None
    return sent.message_id


def words(story: Story) -> list[tuple[str, str | None, bool]]:
    return [(step.what, step.where, step.ok) for step in story.steps]


def test_a_message_is_told_at_each_turn_of_its_life(backend: Backend, clock: FakeClock) -> None:
    message_id, jobs = send(backend), backend.queue("jobs")
    waiting = told(backend, message_id)
    clock.advance(1)
    held = jobs.receive()
    in_flight = told(backend, message_id)
    clock.advance(1)
    jobs.release(held, after=60, error="ValueError: no [a.py:b]")
    retrying = told(backend, message_id)
    clock.advance(61)
    jobs.ack(jobs.receive())
    handled = told(backend, message_id)

    assert (waiting.kind, waiting.verdict, waiting.next) == ("message", "waiting", "a receiver of queue jobs takes it")
    assert (in_flight.verdict, in_flight.next) == ("in_flight", "its lease ends in 30 s")
    assert (retrying.verdict, retrying.next) == ("retrying", "visible again in 60 s")
    assert (handled.verdict, handled.next) == ("handled", "nothing: done")
    assert words(handled) == [
        ("sent", "jobs", True),
        ("received", "jobs", True),
        ("failed", "jobs", False),
        ("acked", "jobs", True),
    ]
    assert handled.steps[2].detail == "ValueError: no [a.py:b]"
    assert "secret-body" not in json.dumps(handled.to_dict()) + json.dumps(waiting.to_dict())


def test_a_delayed_message_says_when_it_is_visible(backend: Backend) -> None:
    story = told(backend, send(backend, delay=90))

    assert (story.verdict, story.next) == ("delayed", "visible in 90 s")


def test_a_dead_letter_keeps_its_id_and_names_the_queue_to_redrive(backend: Backend) -> None:
    message_id, jobs = send(backend), backend.queue("jobs")
    jobs.reject(jobs.receive(), reason="invalid", error="KeyError: id")
    dead = told(backend, message_id)
    redrive(backend, "dead")
    redriven = told(backend, message_id)
    jobs.ack(jobs.receive())

    assert (dead.verdict, dead.next) == ("dead", "redrive queue dead")
    assert "KeyError: id" in dead.summary
    assert redriven.verdict == "waiting"
    assert [what for what, *_ in words(told(backend, message_id))] == ["sent", "received", "dead", "redriven", "acked"]


def test_a_message_behind_its_keys_head_names_the_head(backend: Backend) -> None:
    queue = backend.create_queue(QueueSpec("keyed.fifo", fifo=True))
    first, second = (
        sent.message_id for sent in queue.send([OutgoingMessage(n, group="k", dedup_id=n) for n in ("1", "2")])
    )

    story = told(backend, second)

    assert (story.verdict, story.next) == ("blocked", f"waits for its key's head {first}")


def test_an_expired_message_is_told(backend: Backend, clock: FakeClock) -> None:
    message_id = send(backend)
    clock.advance(345_601)
    backend.queue("jobs").receive()

    assert told(backend, message_id).verdict == "expired"


def test_a_lease_that_ended_unsettled_is_a_step_before_and_after_the_next_receive(
    backend: Backend, clock: FakeClock
) -> None:
    message_id, jobs = send(backend), backend.queue("jobs")
    jobs.receive()
    clock.advance(40)
    lost = told(backend, message_id)
    jobs.ack(jobs.receive())
    handled = told(backend, message_id)

    assert (lost.verdict, lost.next) == ("retrying", "a receiver of queue jobs takes it again")
    assert "did not settle it before its lease ended" in lost.summary
    assert words(lost)[-1] == ("lease_expired", "jobs", False)
    assert [what for what, *_ in words(handled)] == ["sent", "received", "lease_expired", "acked"]
    assert handled.steps[2].at == lost.steps[2].at


def test_the_last_lease_of_a_dead_letter_is_a_step_too(backend: Backend, clock: FakeClock) -> None:
    queue = backend.create_queue(QueueSpec("keyed.fifo", fifo=True, dead_letter=_fifo_dead(backend), max_receives=1))
    [sent] = queue.send([OutgoingMessage("1", group="k", dedup_id="1")])
    queue.receive()
    clock.advance(40)
    assert queue.receive() == []

    assert [what for what, *_ in words(told(backend, sent.message_id))] == ["sent", "received", "lease_expired", "dead"]


def _fifo_dead(backend: Backend) -> str:
    return backend.create_queue(QueueSpec("keyed-dead.fifo", fifo=True)).name


def test_a_release_without_an_error_is_a_step_that_is_no_failure(backend: Backend) -> None:
    message_id, jobs = send(backend), backend.queue("jobs")
    jobs.release(jobs.receive())

    assert words(told(backend, message_id))[-1] == ("released", "jobs", True)


@pytest.mark.parametrize("way", ["purge", "take out", "delete"])
def test_a_purged_message_and_its_event_are_remembered(backend: Backend, tmp_path: Path, way: str) -> None:
    event_id = "0190b5b8-0000-7000-8000-000000000001"
    message_id = send(backend, f'{{"event_id":"{event_id}"}}', attributes={"EventType": "a"})
    send(backend)
    match way:
        case "purge":
            purge(backend, "jobs", confirm="jobs", reason="tidy")
        case "take out":
            purge(backend, "jobs", confirm="jobs", reason="tidy", archive=tmp_path / "purged.jsonl")
        case "delete":
            backend.delete_queue("jobs")
    where = None if way == "delete" else "jobs"

    story, of_event = told(backend, message_id), told(backend, event_id)

    assert (story.verdict, of_event.verdict, story.next) == ("expired", "expired", "nothing: it is gone")
    assert words(story)[-1] == words(of_event)[-1] == ("purged", where, False)
    assert ("queue was deleted" if way == "delete" else "was purged from queue jobs") in story.summary


@pytest.fixture
def groups(live: Backend) -> Callable[[], Any]:
    """Two groups that handle the event; `billing` fails."""
    billing, shipping = live.bus("orders", "billing", config=AT_ONCE), live.bus("orders", "shipping", config=AT_ONCE)

    @billing.on(Placed, max_attempts=1)
    def charge(placed: Placed) -> None:
        billing.publish(Paid(placed.order_id))
        raise ValueError("no card")

    @shipping.on(Placed)
    def ship(placed: Placed) -> None: ...

    billing.receive_once()
    shipping.receive_once()

    def run(name: str) -> None:
        {"billing": billing, "shipping": shipping}[name].receive_once()

    return lambda: (billing.publish(Placed("secret-order")).event_id, run)


def test_an_event_is_told_in_each_queue_and_the_worst_verdict_counts(live: Backend, groups: Callable[[], Any]) -> None:
    event_id, run = groups()
    waiting = told(live, event_id)
    run("shipping")
    run("billing")
    dead = told(live, event_id)

    assert (waiting.kind, waiting.verdict) == ("event", "waiting")
    assert words(waiting)[0] == ("published", None, True)
    assert {where for what, where, _ in words(waiting) if what == "copied"} == {"orders--billing", "orders--shipping"}
    assert (dead.verdict, dead.next) == ("dead", "redrive queue orders--billing--dead")
    assert ("acked", "orders--shipping", True) in words(dead)
    assert ("dead", "orders--billing", False) in words(dead)
    assert "secret-order" not in json.dumps(dead.to_dict())


def test_an_event_that_all_have_handled_is_known_from_the_trail(live: Backend) -> None:
    bus = live.bus("orders", "shipping", config=AT_ONCE)
    bus.on(Placed)(lambda placed: None)
    bus.receive_once()
    event_id = bus.publish(Placed("1")).event_id
    bus.receive_once()

    story = told(live, event_id)

    assert (story.verdict, story.next) == ("handled", "nothing: done")
    assert [what for what, *_ in words(story)] == ["published", "copied", "received", "acked"]


def test_an_event_acked_by_its_receipt_alone_is_known_too(live: Backend) -> None:
    bus = live.bus("orders", "shipping", config=AT_ONCE)
    bus.on(Placed)(lambda placed: None)
    bus.receive_once()
    event_id = bus.publish(Placed("1")).event_id
    queue, never = live.queue("orders--shipping"), datetime.fromtimestamp(0, UTC)
    [held] = queue.receive()
    queue.ack([Delivery("", b"", {}, None, held.receipt, 1, never, never, None)])

    assert told(live, event_id).verdict == "handled"


def test_an_event_names_what_caused_it(live: Backend, groups: Callable[[], Any]) -> None:
    watching = live.bus("orders", "books", config=AT_ONCE)
    watching.on(Paid)(lambda paid: None)
    watching.receive_once()
    event_id, run = groups()
    run("billing")
    [paid] = live.queue("orders--books").peek()
    paid_id = json.loads(paid.body)["event_id"]

    story = told(live, paid_id)

    assert (str(event_id), "caused_by", "event") in [(each.id, each.relation, each.type) for each in story.related]
    causes = [(each.id, each.type) for each in told(live, event_id).related if each.relation == "causes"]
    assert causes == [(paid_id, "event")]


def test_an_event_whose_id_holds_another_time_is_found_all_the_same(backend: Backend) -> None:
    queue = backend.queue("jobs")
    old = "0190b5b8-0000-7000-8000-000000000001"
    body = json.dumps({"event_type": "a", "event_id": old}, separators=(",", ":"))
    queue.send([OutgoingMessage(body, {"EventType": "a", "EventId": old}), OutgoingMessage(f"speaks of {old}")])

    story = told(backend, old)

    assert (story.kind, story.verdict) == ("event", "waiting")
    assert [what for what, *_ in words(story)] == ["published", "copied"]


def test_an_event_of_the_outbox_is_told_before_and_after_its_dispatch(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = f"sqlite:///{tmp_path}/shop.db"
    monkeypatch.setenv("POSTROAD_OUTBOX_DSN", dsn)
    unknown = "0190b5b8-0000-7000-8000-000000000009"
    with pytest.raises(NotFound):
        told(backend, unknown)
    was_made = (tmp_path / "shop.db").exists()
    with Outbox.open(dsn) as outbox:
        outbox.init()
        with outbox.database.transaction() as session:
            event_id = outbox.add(session.connection, DomainEvent(type="a", key={"id": "1"}, payload={"x": "secret"}))

        story = told(backend, event_id)

    assert was_made is False
    assert (story.kind, story.verdict) == ("event", "waiting")
    assert words(story) == [("outbox_added", "outbox", True)]
    assert "postroad outbox run" in story.next


def test_an_agents_event_and_its_messages_are_told(backend: Backend) -> None:
    agents = backend.agents(max_receives=2)
    for name in ("ann", "bob", "cat"):
        agents.register(name)
    agents.subscribe_many([("bob", "ann"), ("cat", "ann")])
    agents.publish([AgentEvent("ann", "placed", {"x": "secret"}, event_id="e-1")])
    agents.runner().run_once()
    waiting = told(backend, "e-1")
    bob, cat = agents.queue("bob"), agents.queue("cat")
    [held] = bob.receive()
    cat.ack(cat.receive())
    in_flight = told(backend, held.message_id)
    bob.reject([held], reason="invalid", error="KeyError: id")
    dead = told(backend, "e-1")

    assert (waiting.kind, waiting.verdict) == ("event", "waiting")
    assert {where for what, where, _ in words(waiting) if what == "copied"} == {"agent bob", "agent cat"}
    assert (in_flight.kind, in_flight.verdict) == ("message", "in_flight")
    assert (dead.verdict, dead.next) == ("dead", "postroad agent redrive bob")
    assert "agent cat handled it" in dead.summary
    assert "KeyError: id" in dead.summary
    assert "secret" not in json.dumps(dead.to_dict())


def test_a_paused_agents_event_says_how_to_resume(backend: Backend) -> None:
    agents = backend.agents()
    for name in ("ann", "bob"):
        agents.register(name)
    agents.subscribe("bob", "ann")
    agents.pause("bob", "ann")
    agents.publish([AgentEvent("ann", "placed", {}, event_id="e-1")])
    agents.runner().run_once()

    story = told(backend, "e-1")

    assert (story.verdict, story.next) == ("blocked", "postroad agent resume bob ann")


def test_a_push_is_told_from_its_message_to_the_answer_of_each_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    monkeypatch.setenv("NOTIFICATIONS_DATABASE_URL", url)
    provider, push_id = Provider(), offline_push_id("ann", "m1")
    provider.answers["b"] = lambda token: TokenResult(token, "dead_token", 404, "UNREGISTERED")
    with connect(f"sqlite:///{tmp_path}/bus.db") as backend, NotificationStore(url) as store:
        backend.create_queue(QueueSpec("push-dlq"))
        backend.create_queue(QueueSpec("push", dead_letter="push-dlq"))
        store.register_device("ann", "a", "fcm")
        store.register_device("ann", "b", "fcm")
        OfflineProcessor(store).handle(missed("m1", content="secret"))
        recorded = told(backend, push_id)
        with NotificationWorker(backend, store, push_queue="push", offline_queue=None, fcm=provider) as worker:
            worker.run_once()
        pushed = told(backend, push_id)

    assert (recorded.kind, recorded.verdict) == ("push", "waiting")
    assert recorded.next == "a notification worker sends it: postroad notifications worker"
    assert (pushed.kind, pushed.verdict, pushed.next) == ("push", "handled", "nothing: done")
    assert {(what, ok) for what, _, ok in words(pushed)} >= {
        ("outbox_added", True),
        ("completed", True),
        ("failed", False),
    }
    assert any(step.detail == "UNREGISTERED (dead_token)" for step in pushed.steps)
    assert "secret" not in json.dumps(pushed.to_dict())


def test_a_push_that_waits_in_its_queue_is_told_as_a_push(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    monkeypatch.setenv("NOTIFICATIONS_DATABASE_URL", url)
    NotificationStore(url).close()
    send(backend, "{}", attributes={"PushId": "my-push"})

    story = told(backend, "my-push")

    assert (story.kind, story.verdict, story.next) == ("push", "waiting", "a receiver of queue jobs takes it")


@pytest.mark.parametrize("name", ["nobody", "a b#c", "x" * 400, "00000000-0000-8000-8000-000000000000", "offline:zz"])
def test_what_nobody_knows_is_not_found_with_a_remedy(backend: Backend, name: str) -> None:
    send(backend, f"speaks of {name}")

    with pytest.raises(NotFound) as missing:
        told(backend, name)

    assert "trail_keep" in missing.value.remedy
