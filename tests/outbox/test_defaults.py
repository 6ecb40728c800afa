"""The defaults that programs rely on without naming them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest

from postroad.cli.outbox_run import run
from postroad.inbox import Consumer, Inbox, Windows
from postroad.outbox import DispatcherConfig, Outbox, OutboxDispatcher
from postroad.settings import Settings

MONTH = timedelta(days=30)
DEFAULTS = [
    (Outbox.postgres, {"dsn": None, "table": "outbox", "schema": "public", "cipher": None, "max_bytes": 262_144}),
    (Outbox.sqlite, {"path": None, "table": "outbox", "cipher": None, "max_bytes": 262_144}),
    (Outbox.failed, {"limit": 50, "after": None}),
    (Outbox.keys, {"blocked": True, "limit": 50}),
    (Outbox.redrive, {"event_ids": (), "limit": None, "canary": None, "dry_run": False}),
    (Outbox.audit, {"limit": 100}),
    (Outbox.prune, {"older_than": timedelta(days=7), "batch": 1_000}),
    (Outbox.reconcile, {"older_than": 60.0, "types": None}),
    (OutboxDispatcher, {"config": DispatcherConfig(), "name": None, "service": "default", "render": None}),
    (OutboxDispatcher.drain, {"timeout": 30.0}),
    (OutboxDispatcher.stop, {"timeout": 20.0}),
    (Inbox.postgres, {"dsn": None, "table": "inbox", "schema": "public", "retention": MONTH}),
    (Inbox.sqlite, {"path": None, "table": "inbox", "retention": MONTH}),
    (Inbox.begin, {"lease": 60.0}),
    (Inbox.unknown, {"consumer": None, "limit": 50}),
    (Inbox.prune, {"batch": 1_000}),
    (Consumer, {"effects": "database", "types": None, "dead_letters": None, "windows": Windows(), "transaction": None}),
    (Consumer, {"concurrency": 1, "on_unknown": "dead_letter", "service": "default"}),
    (Consumer.run_once, {"wait": 0.0}),
    (run, {"batch": 50, "concurrency": 10, "retry_max": 10, "policy": "block", "service": None}),
    (Settings, {"outbox_service": "default"}),
]


@pytest.mark.parametrize(("call", "defaults"), DEFAULTS)
def test_what_a_caller_leaves_out_is_what_is_written_down(
    call: Callable[..., object], defaults: dict[str, Any]
) -> None:
    parameters = inspect.signature(call).parameters

    assert {name: parameters[name].default for name in defaults} == defaults


def test_a_dispatcher_of_which_nothing_is_said_works_as_written_down() -> None:
    assert asdict(DispatcherConfig()) == {
        "batch": 50,
        "concurrency": 10,
        "backoff": (1, 5, 30, 120, 600, 3600),
        "retry_max": 10,
        "jitter": 0.1,
        "lease": 30.0,
        "poll": 1.0,
        "listen": True,
        "policy": "block",
        "publish_batch": 10,
        "target_pause": 5.0,
        "keep_sent": timedelta(days=7),
    }


def test_windows_of_which_nothing_is_said_are_those_of_the_queues() -> None:
    assert asdict(Windows()) == {
        "queue_retention": 345_600,
        "dead_letter_retention": 1_209_600,
        "outbox_horizon": 16_672,
        "redrive_delay": 0,
    }
