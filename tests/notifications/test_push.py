"""A push reaches each device once; each device's result stands by itself."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.notifications.people import Provider, push_to

from postroad.errors import InvalidNotification
from postroad.notifications import NotificationStore, PushNotification, PushProcessor, TokenResult
from postroad.notifications.devices import bare, platform_of
from postroad.notifications.push import SETTLED

APPLE = "ab" * 32


@pytest.mark.parametrize(
    ("token", "registered", "platform", "sent_as"),
    [
        ("tok", "apns", "apns", "tok"),
        (APPLE, "fcm", "fcm", APPLE),
        ("apns:tok", None, "apns", "tok"),
        ("fcm:tok", None, "fcm", "tok"),
        ("apns:tok", "apns", "apns", "tok"),
        (APPLE, None, "apns", APPLE),
        ("AB" * 100, None, "apns", "AB" * 100),
        ("ab" * 31, None, "fcm", "ab" * 31),
        ("ab" * 101, None, "fcm", "ab" * 101),
        ("c:APA91b", None, "fcm", "c:APA91b"),
    ],
)
def test_the_provider_of_a_token(token: str, registered: str | None, platform: str, sent_as: str) -> None:
    found = platform_of(token, registered)  # type: ignore[arg-type]  # one of the two

    assert (found, bare(token, found)) == (platform, sent_as)


def test_each_device_is_asked_through_its_own_provider(each_store: NotificationStore) -> None:
    each_store.register_device("ann", "t1", "apns")
    apns, fcm = Provider(), Provider()

    results = PushProcessor(each_store, apns=apns, fcm=fcm).handle(push_to("t1", "fcm:t2", APPLE), push_id="p1")

    assert [(result.token, result.outcome) for result in results] == [
        ("t1", "sent"),
        ("fcm:t2", "sent"),
        (APPLE, "sent"),
    ]
    assert sorted(apns.asked) == [("p1", APPLE), ("p1", "t1")]
    assert fcm.asked == [("p1", "t2")]


def test_a_second_delivery_goes_only_to_devices_without_an_answer(store: NotificationStore) -> None:
    fcm = Provider()
    fcm.answers = {
        "dead": lambda token: TokenResult(token, "dead_token", 404, "UNREGISTERED"),
        "busy": lambda token: TokenResult(token, "retry", 503),
        "odd": lambda token: TokenResult(token, "permanent", 400),
    }
    processor = PushProcessor(store, fcm=fcm)
    push = push_to("good", "dead", "busy", "odd")
    first = processor.handle(push, push_id="p1")
    fcm.asked.clear()
    fcm.answers.clear()

    second = processor.handle(push, push_id="p1")

    assert [result.outcome for result in first] == ["sent", "dead_token", "retry", "permanent"]
    assert [result.outcome for result in second] == ["sent", "dead_token", "sent", "sent"]
    assert sorted(fcm.asked) == [("p1", "busy"), ("p1", "odd")]


def test_a_token_that_is_given_twice_is_asked_once(store: NotificationStore) -> None:
    fcm = Provider()

    results = PushProcessor(store, fcm=fcm).handle(push_to("t1", "t1"), push_id="p1")

    assert [result.outcome for result in results] == ["sent"]
    assert fcm.asked == [("p1", "t1")]


def test_without_a_sender_the_answer_is_final(store: NotificationStore) -> None:
    (result,) = PushProcessor(store, fcm=Provider()).handle(push_to(APPLE), push_id="p1")

    assert (result.outcome, result.reason) == ("permanent", "no_sender")


def test_a_dead_device_is_dropped_with_the_reason(store: NotificationStore) -> None:
    store.register_device("ann", "t1")
    fcm = Provider()
    fcm.down = TokenResult("t1", "dead_token", 404, "UNREGISTERED")

    PushProcessor(store, fcm=fcm).handle(push_to("t1"), push_id="p1")

    assert store.devices("ann") == []
    with store.outbox.database.reading() as session:
        assert session.rows("SELECT drop_reason FROM devices WHERE token = 't1'") == [("UNREGISTERED",)]


def test_nothing_is_shown_on_a_device_that_another_user_has_by_now(store: NotificationStore) -> None:
    store.register_device("ann", "shared")
    store.register_device("ann", "lost")
    store.register_device("eve", "shared")
    store.drop_device("lost", "Unregistered")
    fcm = Provider()

    results = PushProcessor(store, fcm=fcm).handle(push_to("shared", "lost"), push_id="p1")

    assert [(result.outcome, result.reason) for result in results] == [
        ("dead_token", "other_user"),
        ("dead_token", "dropped"),
    ]
    assert fcm.asked == []
    assert [device.token for device in store.devices("eve")] == ["shared"]


def test_a_sender_that_raises_counts_as_one_that_did_not_answer(store: NotificationStore) -> None:
    class Raising:
        def send(self, push: PushNotification, token: str, *, push_id: str) -> TokenResult:
            raise InvalidNotification("token: bad", field="token") if token == "bad" else OSError("reset")

    results = PushProcessor(store, fcm=Raising()).handle(push_to("bad", "good"), push_id="p1")

    assert [(result.outcome, result.reason) for result in results] == [
        ("permanent", "token refused"),
        ("retry", "OSError"),
    ]


@pytest.mark.parametrize("tokens", [("t1",), ("t1", "t2", "t3")])
def test_a_sender_that_returns_no_result_counts_as_one_that_did_not_answer(
    store: NotificationStore, tokens: tuple[str, ...]
) -> None:
    class Forgetful:
        def send(self, push: PushNotification, token: str, *, push_id: str) -> Any:
            return None

    results = PushProcessor(store, fcm=Forgetful()).handle(push_to(*tokens), push_id="p1")

    assert [(result.outcome, result.reason) for result in results] == [("retry", "TypeError")] * len(tokens)


def test_a_sender_that_exits_ends_the_push_and_the_answers_of_other_devices_are_kept(store: NotificationStore) -> None:
    class Exiting(Provider):
        def send(self, push: PushNotification, token: str, *, push_id: str) -> TokenResult:
            if token == "bad":
                raise SystemExit
            return super().send(push, token, push_id=push_id)

    with pytest.raises(SystemExit):
        PushProcessor(store, fcm=Exiting()).handle(push_to("t1", "bad", "t2"), push_id="p1")

    assert [result.outcome for result in store.results("p1")] == ["sent", "sent"]


def test_devices_are_asked_a_few_at_a_time(store: NotificationStore) -> None:
    together = threading.Barrier(4)
    most = 0
    lock = threading.Lock()
    running = 0

    class Slow(Provider):
        def send(self, push: PushNotification, token: str, *, push_id: str) -> TokenResult:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            together.wait(120)
            with lock:
                running -= 1
            return super().send(push, token, push_id=push_id)

    results = PushProcessor(store, fcm=Slow(), concurrency=4).handle(
        push_to(*(f"t{n}" for n in range(20))), push_id="p1"
    )

    assert {result.outcome for result in results} <= set(SETTLED)
    assert most == 4
