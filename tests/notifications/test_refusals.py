"""Refusals that concern every push: the breaker opens, and neither pushes nor devices are dropped."""

from __future__ import annotations

from typing import Any

import pytest
from tests.notifications.people import push_to
from tests.notifications.senders.conftest import PUSH, apns, apple, fcm, google
from tests.notifications.senders.standins import ApnsStandIn, Fault, FcmStandIn
from tests.notifications.senders.test_fcm import fcm_error, refusal
from tests.notifications.test_worker import held, send, worker_for

from postroad.notifications import NotificationStore
from postroad.notifications.senders import APNSSender, FCMSender
from postroad.wiring import Backend

__all__ = ["apns", "apple", "fcm", "google"]

MISMATCH = refusal(403, "PERMISSION_DENIED", fcm_error("SENDER_ID_MISMATCH"))
TOKENS = [f"{number:064x}" for number in range(12)]


def push_to_all(backend: Backend, store: NotificationStore, platform: Any) -> None:
    for token in TOKENS:
        store.register_device("ann", token, platform)
        send(backend, "push-queue", push_to(token).to_json())


@pytest.mark.parametrize(
    "fault",
    [
        Fault(400, "TopicDisallowed"),
        Fault(400, "BadTopic"),
        Fault(403, "MissingProviderToken"),
        Fault(403, "InvalidProviderToken"),
    ],
    ids=lambda fault: fault.reason,
)
def test_a_wrong_topic_or_key_opens_the_breaker_and_every_push_waits(
    backend: Backend, store: NotificationStore, apple: ApnsStandIn, apns: APNSSender, fault: Fault
) -> None:
    apple.fail_all(fault)
    push_to_all(backend, store, "apns")

    worker = worker_for(backend, store, apns=apns, concurrency=1)
    worker.run_once()

    assert worker.breakers["apns"].state == "open"
    assert (held(backend, "push-queue"), held(backend, "push-dlq")) == (len(TOKENS), 0)
    assert len(store.devices("ann")) == len(TOKENS)


def test_a_revoked_role_opens_the_breaker_and_every_push_waits(
    backend: Backend, store: NotificationStore, google: FcmStandIn, fcm: FCMSender
) -> None:
    google.fail_all(refusal(403, "PERMISSION_DENIED"))
    push_to_all(backend, store, "fcm")

    worker = worker_for(backend, store, fcm=fcm, concurrency=1)
    worker.run_once()

    assert worker.breakers["fcm"].state == "open"
    assert (held(backend, "push-queue"), held(backend, "push-dlq")) == (len(TOKENS), 0)
    assert len(google.seen) == 5


def test_a_push_alone_in_its_queue_waits_for_the_mending_however_long_it_takes(
    backend: Backend, store: NotificationStore, google: FcmStandIn, fcm: FCMSender
) -> None:
    google.fail_all(refusal(403, "PERMISSION_DENIED"))
    send(backend, "push-queue", push_to("phone").to_json())
    worker = worker_for(backend, store, fcm=fcm, breaker_seconds=0.0)

    while len(google.seen) < 6:
        worker.run_once(wait=0.2)
    google.fail_all(None)
    while held(backend, "push-queue"):
        worker.run_once(wait=0.2)

    assert held(backend, "push-dlq") == 0
    assert len(google.shown("phone")) == 1


def test_five_devices_of_another_sender_in_a_row_are_our_own_fault_and_none_is_dropped(
    backend: Backend, store: NotificationStore, google: FcmStandIn, fcm: FCMSender
) -> None:
    google.fail_all(MISMATCH)
    push_to_all(backend, store, "fcm")
    store.register_device("ann", "gone", "fcm")
    store.drop_device("gone", "UNREGISTERED")

    worker = worker_for(backend, store, fcm=fcm, concurrency=1, batch=1, breaker_failures=2)
    reports = [worker.run_once() for _ in range(7)]

    assert worker.breakers["fcm"].state == "open"
    assert [report.deferred for report in reports] == [0, 0, 0, 0, 1, 1, 0]
    assert sorted(device.token for device in store.devices("ann")) == TOKENS
    assert held(backend, "push-dlq") == 0


def test_a_success_between_them_shows_that_each_device_is_dead(google: FcmStandIn, fcm: FCMSender) -> None:
    outcomes = []
    for token in TOKENS[:8]:
        google.fail(token, MISMATCH)
        outcomes.append(fcm.send(PUSH, token, push_id="offline:1").outcome)
        if token == TOKENS[3]:
            fcm.send(PUSH, TOKENS[9], push_id="offline:1")

    assert outcomes == ["dead_token"] * 8


def test_five_devices_of_another_app_in_a_row_mean_that_the_topic_is_wrong(
    apple: ApnsStandIn, apns: APNSSender
) -> None:
    apple.fail_all(Fault(400, "DeviceTokenNotForTopic"))

    outcomes = [apns.send(PUSH, token, push_id="offline:1").outcome for token in TOKENS[:6]]

    assert outcomes == ["dead_token"] * 4 + ["auth"] * 2
