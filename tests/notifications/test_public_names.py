"""What other programs rely on: the ids of pushes, the columns of the tables, and what holds when nothing is said."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest

from postroad.notifications import (
    APNSSender,
    Autoscaler,
    FCMSender,
    NotificationStore,
    NotificationWorker,
    OfflineProcessor,
)
from postroad.notifications.devices import offline_push_id, push_id_of
from postroad.notifications.senders.answers import collapse_id, request_id
from postroad.settings import notification_settings

DEFAULTS: dict[Callable[..., Any], dict[str, Any]] = {
    NotificationWorker: {
        "apns": None,
        "fcm": None,
        "batch": 10,
        "wait": 20.0,
        "concurrency": 8,
        "retry_delays": (60, 300),
        "breaker_failures": 5,
        "breaker_seconds": 30.0,
    },
    NotificationWorker.run_once: {"wait": 0.0},
    NotificationStore.register_device: {"platform": None},
    NotificationStore.pending: {"limit": 100, "after": None},
    OfflineProcessor: {"display_name": None, "include_content": True},
    APNSSender: {
        "base_url": "https://api.push.apple.com",
        "ca_file": None,
        "timeout": 10.0,
        "expires_in": 86_400,
    },
    FCMSender: {
        "token_provider": None,
        "credentials_file": None,
        "base_url": "https://fcm.googleapis.com",
        "ca_file": None,
        "timeout": 10.0,
    },
    Autoscaler: {
        "min_tasks": 1,
        "max_tasks": 10,
        "target_backlog": 100,
        "age_threshold": 300,
        "in_cooldown": 300,
        "out_cooldown": 60,
    },
}
COLUMNS = {
    "offline_messages": "user_id message_id conversation_id sender_id content sent_at stored_at delivered_at",
    "devices": "token user_id platform registered_at dropped_at drop_reason",
    "push_results": "push_id token_hash outcome attempts status reason provider_id updated_at",
}


@pytest.mark.parametrize("called", DEFAULTS, ids=lambda called: called.__qualname__)
def test_what_is_not_said_has_its_default(called: Callable[..., Any]) -> None:
    given = {name: each.default for name, each in inspect.signature(called).parameters.items()}

    assert {name: given[name] for name in DEFAULTS[called]} == DEFAULTS[called]


def test_what_the_environment_does_not_say_has_its_default() -> None:
    told = notification_settings({})

    assert (told.batch, told.poll_interval, told.visibility, told.max_tasks) == (10, 1.0, None, 10)
    assert (told.health_host, told.health_port) == ("127.0.0.1", 3003)
    assert told.idle


def test_a_push_is_named_by_its_user_and_message_or_by_its_body() -> None:
    by_message = sha256(b"ann\nm1").hexdigest()[:32]
    by_body = sha256(b"{}").hexdigest()[:32]

    assert offline_push_id("ann", "m1") == f"offline:{by_message}"
    assert push_id_of(b"{}", {}) == f"body:{by_body}"
    assert push_id_of(b"{}", {"PushId": "mine"}) == "mine"


def test_a_push_collapses_on_a_device_and_has_an_id_for_each() -> None:
    ids = [UUID(request_id(push, token)) for push, token in (("p", "t1"), ("p", "t2"), ("q", "t1"))]

    assert collapse_id("p") == sha256(b"p").hexdigest()[:32]
    assert len(set(ids)) == 3
    assert {each.version for each in ids} == {5}


@pytest.mark.parametrize("table", COLUMNS)
def test_tables_have_the_columns_that_others_query(store: NotificationStore, table: str) -> None:
    with store.outbox.database.reading() as session:
        found = [name for (name,) in session.rows("SELECT name FROM pragma_table_info(?)", (table,))]

    assert found == COLUMNS[table].split()
