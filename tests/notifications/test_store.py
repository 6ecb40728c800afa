"""Messages, devices and results, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.notifications.people import missed

from postroad.errors import ConfigurationError, InvalidInput, InvalidNotification
from postroad.notifications import Device, NotificationStore, OfflineProcessor, TokenResult
from postroad.notifications.devices import token_hash


def test_a_store_opened_twice_keeps_what_it_holds(each_store: NotificationStore) -> None:
    OfflineProcessor(each_store).handle(missed())

    with NotificationStore(each_store.url) as again:
        assert again.pending("ann") == [missed()]


def test_pending_messages_come_in_stored_order_page_by_page(each_store: NotificationStore) -> None:
    processor = OfflineProcessor(each_store)
    for name in ("z", "a", "m", "b"):
        processor.handle(missed(name))
    processor.handle(missed("other", user="eve"))

    pages = [each_store.pending("ann", limit=2), each_store.pending("ann", limit=2, after="a")]

    assert [message.messageId for page in pages for message in page] == ["z", "a", "m", "b"]
    assert each_store.pending("ann", after="b") == []


def test_a_page_begins_behind_a_message_that_was_delivered_meanwhile(each_store: NotificationStore) -> None:
    processor = OfflineProcessor(each_store)
    for name in ("1", "2"):
        processor.handle(missed(name))
    each_store.mark_delivered("ann", ["1"])

    assert [message.messageId for message in each_store.pending("ann", after="1")] == ["2"]


def test_a_message_is_delivered_once(each_store: NotificationStore) -> None:
    processor = OfflineProcessor(each_store)
    for name in ("1", "2", "3"):
        processor.handle(missed(name))

    first = each_store.mark_delivered("ann", ["1", "2", "never"])
    second = each_store.mark_delivered("ann", ["1", "2"])
    others = each_store.mark_delivered("eve", ["3"])

    assert (first, second, others) == (2, 0, 0)
    assert [message.messageId for message in each_store.pending("ann")] == ["3"]


@pytest.mark.parametrize(("options", "field"), [({"limit": 0}, "limit"), ({"after": "never"}, "after")])
def test_a_page_that_cannot_be_is_refused(store: NotificationStore, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        store.pending("ann", **options)

    assert caught.value.field == field


def test_a_token_belongs_to_the_user_who_registered_it_last(each_store: NotificationStore) -> None:
    each_store.register_device("ann", "t1", "apns")
    each_store.register_device("ann", "t2")
    each_store.register_device("eve", "t1", "fcm")

    assert each_store.devices("ann") == [Device("t2", "ann", None)]
    assert each_store.devices("eve") == [Device("t1", "eve", "fcm")]


def test_a_dropped_device_is_live_again_when_it_registers(each_store: NotificationStore) -> None:
    each_store.register_device("ann", "t1")

    dropped = [each_store.drop_device("t1", "Unregistered"), each_store.drop_device("t1", "again")]
    gone = each_store.devices("ann")
    each_store.register_device("ann", "t1")

    assert (dropped, gone) == ([True, False], [])
    assert each_store.devices("ann") == [Device("t1", "ann", None)]


@pytest.mark.parametrize("token", ["", "a/b", "..", "a\r\nb"])
def test_a_token_that_could_leave_its_place_is_not_registered(store: NotificationStore, token: str) -> None:
    with pytest.raises(InvalidNotification):
        store.register_device("ann", token)

    assert store.devices("ann") == []


def test_a_device_of_no_provider_is_not_registered(store: NotificationStore) -> None:
    with pytest.raises(InvalidInput, match="platform"):
        store.register_device("ann", "t1", "windows")  # type: ignore[arg-type]  # the point of the test


def test_results_hold_hashes_and_the_last_answer_counts(each_store: NotificationStore) -> None:
    now = datetime.now(UTC)
    each_store.record("p1", [TokenResult("t1", "retry", 503, "Down"), TokenResult("t2", "sent", 200)], asked_at=now)

    each_store.record("p1", [TokenResult("t1", "sent", 200, "", "id-1")], asked_at=now)

    found = {result.token: result for result in each_store.results("p1")}
    assert found.keys() == {token_hash("t1"), token_hash("t2")}
    assert found[token_hash("t1")] == TokenResult(token_hash("t1"), "sent", 200, "", "id-1")
    assert each_store.results("p2") == []


def test_a_dead_token_is_dropped_unless_it_registered_later(each_store: NotificationStore) -> None:
    for token in ("dead", "back", "new"):
        each_store.register_device("ann", token)
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    answers = [
        TokenResult("dead", "dead_token", 410, "Unregistered", dead_since=now + hour),
        TokenResult("back", "dead_token", 410, "Unregistered", dead_since=now - hour),
    ]

    dropped = each_store.record("p1", answers, asked_at=now + hour)
    each_store.record("p1", [TokenResult("new", "dead_token", 404, "UNREGISTERED")], asked_at=now - hour)

    assert dropped == 1
    assert {device.token for device in each_store.devices("ann")} == {"back", "new"}


@pytest.mark.parametrize("url", ["mysql://x", "sqlite:///", ""])
def test_an_address_of_no_database_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="dsn"):
        NotificationStore(url)


def test_a_file_in_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        NotificationStore(f"sqlite:///{tmp_path}/nowhere/chat.db")
