"""A missed message is stored with its push, both or neither, once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from prometheus_client import REGISTRY
from tests.notifications.people import missed

from postroad.errors import Unavailable
from postroad.events import DomainEvent
from postroad.notifications import NotificationStore, OfflineProcessor
from postroad.notifications.devices import offline_push_id
from postroad.notifications.worker import relay
from postroad.queues import Delivery
from postroad.wiring import Backend

CRASHING = """
import sys
from datetime import UTC, datetime
from postroad import failpoints
from postroad.events import DomainEvent
from postroad.notifications import NotificationStore, OfflineMessage, OfflineProcessor
failpoints.load("notifications.offline.mid=kill9")
with NotificationStore(sys.argv[1]) as store:
    OfflineProcessor(store).handle(OfflineMessage("ann", "m1", "conv", "bob", "Hey!", datetime.now(UTC)))
"""

REGISTER = "INSERT INTO devices SELECT ?, user_id, platform, '9999', NULL, NULL FROM devices WHERE token = 't0'"


def pushes(store: NotificationStore, backend: Backend) -> list[Delivery]:
    """What the relay puts into the queue."""
    queue = backend.queue("push-queue")
    relay(store, queue).drain(10.0)
    return queue.receive()


def body_of(deliveries: list[Delivery]) -> Any:
    (delivery,) = deliveries
    return json.loads(delivery.body)["payload"]["body"]


def test_a_message_is_stored_once_with_one_push(each_store: NotificationStore, backend: Backend) -> None:
    each_store.register_device("ann", "t1")
    processor = OfflineProcessor(each_store)

    outcomes = [processor.handle(missed()), processor.handle(missed())]

    assert outcomes == ["stored", "duplicate"]
    assert each_store.pending("ann") == [missed()]
    assert len(pushes(each_store, backend)) == 1


def test_the_push_says_who_wrote_what_to_the_users_live_devices(
    each_store: NotificationStore, backend: Backend
) -> None:
    for token in ("t1", "t2", "gone"):
        each_store.register_device("ann", token)
    each_store.drop_device("gone", "Unregistered")

    OfflineProcessor(each_store, display_name={"bob": "Bob"}.__getitem__).handle(missed())

    (push,) = pushes(each_store, backend)
    assert push.attributes == {"PushId": offline_push_id("ann", "m1")}
    assert push.body.decode() == (
        '{"type":"push_notification","userId":"ann","deviceTokens":["t2","t1"],'
        '"payload":{"title":"New message","body":"Bob: Hey!","data":{"conversationId":"conv"}},'
        '"timestamp":"2024-01-15T10:30:00Z"}'
    )


def test_a_user_without_a_device_gets_no_push(each_store: NotificationStore, backend: Backend) -> None:
    assert OfflineProcessor(each_store).handle(missed()) == "stored"

    assert each_store.pending("ann") == [missed()]
    assert pushes(each_store, backend) == []


def test_another_content_for_the_same_message_changes_nothing_and_is_counted(each_store: NotificationStore) -> None:
    processor = OfflineProcessor(each_store)
    processor.handle(missed())
    before = REGISTRY.get_sample_value("offline_conflicts_total") or 0.0

    outcome = processor.handle(missed(content="Bye!"))

    assert outcome == "duplicate"
    assert each_store.pending("ann") == [missed()]
    assert REGISTRY.get_sample_value("offline_conflicts_total") == before + 1


@pytest.mark.parametrize("letter", ["x", "é", "🙂"])
def test_the_body_is_cut_to_what_providers_take(store: NotificationStore, backend: Backend, letter: str) -> None:
    store.register_device("ann", "t1")

    OfflineProcessor(store).handle(missed(content=letter * 5_000))

    body = body_of(pushes(store, backend))
    assert body.startswith(f"bob: {letter}")
    assert body == f"bob: {letter * 5_000}"[: len(body)]
    assert 995 < len(body) <= 1_000 or 2_044 < len(body.encode()) <= 2_048


def test_the_content_can_be_left_out(store: NotificationStore, backend: Backend) -> None:
    store.register_device("ann", "t1")

    OfflineProcessor(store, include_content=False).handle(missed())

    assert body_of(pushes(store, backend)) == "New message"


@pytest.mark.parametrize("name", [{}.__getitem__, lambda sender: "", lambda sender: None, lambda sender: "\ud800"])
def test_a_sender_without_a_name_is_shown_by_its_id(store: NotificationStore, backend: Backend, name: Any) -> None:
    store.register_device("ann", "t1")

    OfflineProcessor(store, display_name=name).handle(missed())

    assert body_of(pushes(store, backend)) == "bob: Hey!"


def test_a_user_of_many_devices_gets_the_push_on_the_newest_500(store: NotificationStore, backend: Backend) -> None:
    store.register_device("ann", "t0")
    with store.outbox.database.transaction() as session:
        for number in range(1, 501):
            session.change(REGISTER, (f"t{number}",))

    OfflineProcessor(store).handle(missed())

    (push,) = pushes(store, backend)
    tokens = json.loads(push.body)["deviceTokens"]
    assert len(tokens) == 500
    assert "t0" not in tokens


def test_a_crash_between_message_and_push_leaves_neither(store: NotificationStore, backend: Backend) -> None:
    store.register_device("ann", "t1")

    died = subprocess.run([sys.executable, "-c", CRASHING, store.url], capture_output=True, check=False)

    assert died.returncode == -signal.SIGKILL
    assert store.pending("ann") == []
    assert pushes(store, backend) == []
    assert OfflineProcessor(store).handle(missed()) == "stored"
    assert len(pushes(store, backend)) == 1


def test_a_push_that_was_relayed_twice_has_one_id(store: NotificationStore, backend: Backend) -> None:
    store.register_device("ann", "t1")
    OfflineProcessor(store).handle(missed())
    queue = backend.queue("push-queue")

    class SendsAndFails:
        traits = queue.traits

        def send(self, messages: Any) -> Any:
            queue.send(messages)
            raise Unavailable("the answer was lost")

    relay(store, SendsAndFails()).run_once()  # type: ignore[arg-type]  # a queue whose answers get lost
    with store.outbox.database.transaction() as session:
        session.change("UPDATE outbox SET next_attempt = createdat")
    relay(store, queue).drain(10.0)

    ids = [delivery.attributes["PushId"] for delivery in queue.receive()]
    assert ids == [offline_push_id("ann", "m1")] * 2


def test_an_event_that_is_no_push_is_left_in_the_outbox_with_the_reason(
    store: NotificationStore, backend: Backend
) -> None:
    with store.outbox.database.transaction() as session:
        event_id = store.outbox.add(session.connection, DomainEvent("orders.placed", {"order": "1"}, {}))

    assert pushes(store, backend) == []
    row = store.outbox.get(event_id)
    assert row is not None
    assert row.state == "FAILED"
    assert "no push" in str(row.last_error)


def test_several_messages_are_stored_together_beside_one_whose_push_was_recorded_before(
    each_store: NotificationStore, backend: Backend
) -> None:
    each_store.register_device("ann", "t1")
    processor = OfflineProcessor(each_store)
    processor.handle(missed("m1"))
    with each_store.outbox.database.transaction() as session:
        session.change("DELETE FROM offline_messages")

    outcomes = processor.handle_all([missed("m0"), missed("m1"), missed("m2"), missed("m2")])

    assert outcomes == ["stored", "stored", "stored", "duplicate"]
    ids = {push.attributes["PushId"] for push in pushes(each_store, backend)}
    assert ids == {offline_push_id("ann", name) for name in ("m0", "m1", "m2")}
