"""What an operator is shown about a user."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from tests.notifications.people import missed

from postroad.errors import NotFound
from postroad.notifications import NotificationStore, OfflineProcessor, TokenResult, push_results, show_user
from postroad.notifications.devices import offline_push_id, token_hash


def test_devices_waiting_messages_and_results_are_shown_without_tokens_and_contents(
    each_store: NotificationStore,
) -> None:
    each_store.register_device("ann", "old-phone", "fcm")
    each_store.register_device("ann", "new-phone")
    each_store.register_device("eve", "other-phone")
    OfflineProcessor(each_store).handle(missed("m1", content="very private"))
    OfflineProcessor(each_store).handle(missed("m2", user="eve"))
    now = datetime.now(UTC)
    each_store.record("p-1", [TokenResult("new-phone", "sent", 200, "", "id-1")], asked_at=now)
    each_store.record("p-1", [TokenResult("old-phone", "dead_token", 404, "UNREGISTERED")], asked_at=now)
    each_store.record("p-2", [TokenResult("other-phone", "retry", 503, "busy")], asked_at=now)

    shown = show_user(each_store, "ann")

    devices = {each.token_hash: each for each in shown.devices}
    assert devices.keys() == {token_hash("old-phone"), token_hash("new-phone")}
    assert devices[token_hash("old-phone")].drop_reason == "UNREGISTERED"
    assert devices[token_hash("new-phone")].dropped_at is None
    assert [(each.message_id, each.push_id) for each in shown.pending] == [("m1", offline_push_id("ann", "m1"))]
    assert shown.pending_total == 1
    results = {(each.push_id, each.outcome, each.status, each.reason, each.attempts) for each in shown.results}
    assert results == {("p-1", "sent", 200, "", 1), ("p-1", "dead_token", 404, "UNREGISTERED", 1)}
    text = msgspec.json.encode(shown)
    assert b"phone" not in text
    assert b"private" not in text


def test_what_a_device_got_before_it_was_the_users_is_not_shown(each_store: NotificationStore) -> None:
    each_store.register_device("eve", "phone")
    each_store.record("p-1", [TokenResult("phone", "sent", 200)], asked_at=datetime.now(UTC))
    each_store.register_device("ann", "phone")

    assert show_user(each_store, "ann").results == []
    with pytest.raises(NotFound):
        show_user(each_store, "eve")


def test_what_a_device_got_before_its_app_started_again_is_shown(each_store: NotificationStore) -> None:
    each_store.register_device("ann", "phone")
    each_store.record("p-1", [TokenResult("phone", "permanent", 400, "PayloadTooLarge")], asked_at=datetime.now(UTC))
    each_store.register_device("ann", "phone", "fcm")

    assert [each.reason for each in show_user(each_store, "ann").results] == ["PayloadTooLarge"]


def test_a_user_whose_messages_were_all_delivered_is_known(each_store: NotificationStore) -> None:
    OfflineProcessor(each_store).handle(missed("m1"))
    each_store.mark_delivered("ann", ["m1"])

    shown = show_user(each_store, "ann")

    assert (shown.devices, shown.pending, shown.pending_total, shown.results) == ([], [], 0, [])


def test_the_last_hundred_results_are_shown_newest_first(each_store: NotificationStore) -> None:
    each_store.register_device("ann", "phone")
    for n in range(101):
        each_store.record(f"p-{n:03}", [TokenResult("phone", "sent", 200)], asked_at=datetime.now(UTC))

    shown = show_user(each_store, "ann")

    assert [each.push_id for each in shown.results] == [f"p-{n:03}" for n in range(100, 0, -1)]
    assert [each.outcome for each in push_results(each_store, "p-007")] == ["sent"]
