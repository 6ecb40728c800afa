"""The worker as a service: told by its environment, asked on its port, ended by SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.notifications.people import missed
from tests.notifications.senders.standins import KEY_ID, TEAM_ID, TOPIC, ApnsStandIn, apns_stand_in
from tests.waiting import eventually

from postroad import connect
from postroad.notifications import NotificationStore
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.settings import Settings
from postroad.up.notifications import send_notifications
from postroad.wiring import Backend


@pytest.fixture
def apple(tmp_path: Path) -> Iterator[ApnsStandIn]:
    with apns_stand_in(tmp_path) as apple:
        yield apple


def environment(backend: Backend, store: NotificationStore, apple: ApnsStandIn, directory: Path) -> dict[str, str]:
    (directory / "key.p8").write_text(apple.key)
    return {
        "POSTROAD_URL": backend.url,
        "POSTROAD_LOG_FORMAT": "json",
        "SQS_PUSH_QUEUE_URL": "push-queue",
        "SQS_OFFLINE_QUEUE_URL": "https://sqs.eu-central-1.amazonaws.com/123456789012/offline-queue",
        "NOTIFICATIONS_DATABASE_URL": store.url,
        "HEALTH_PORT": "0",
        "APNS_KEY_FILE": str(directory / "key.p8"),
        "APNS_KEY_ID": KEY_ID,
        "APNS_TEAM_ID": TEAM_ID,
        "APNS_TOPIC": TOPIC,
        "APNS_URL": apple.url,
        "PUSH_CA_FILE": str(apple.ca_file),
    }


def made(url: str) -> Backend:
    backend = connect(url)
    for name in ("push-queue", "offline-queue"):
        backend.create_queue(QueueSpec(name))
    return backend


def asked(port: int, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.mark.slow
def test_the_command_moves_messages_and_tells_how_it_is_until_sigterm(
    store: NotificationStore, apple: ApnsStandIn, tmp_path: Path
) -> None:
    store.register_device("ann", "apns:t1")
    with made(f"sqlite:///{tmp_path}/bus.db") as backend:
        told = {**os.environ, **environment(backend, store, apple, tmp_path)}
        command = [sys.executable, "-m", "postroad", "notifications", "worker", "--json"]
        with subprocess.Popen(command, env=told, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
            try:
                assert worker.stderr is not None
                assert worker.stdout is not None
                lines = (json.loads(line) for line in worker.stderr)
                port = next(line["port"] for line in lines if line["event"] == "notification_worker_started")
                backend.queue("offline-queue").send([OutgoingMessage(missed().to_json())])
                eventually(lambda: len(apple.shown("t1")) == 1)

                answers = [asked(port, path) for path in ("/health", "/health/detailed", "/scaling?current=3", "/x")]

                worker.send_signal(signal.SIGTERM)
                assert worker.wait(120) == 0
                assert json.loads(worker.stdout.read()) == {"stopped": True}
                told_lines = worker.stderr.read()
            finally:
                worker.kill()

    assert [status for status, _ in answers] == [200, 200, 200, 404]
    short, detailed, scaling, _ = (document for _, document in answers)
    assert (short["status"], short["service"]) == ("ok", "workers")
    assert (detailed["status"], detailed["breakers"]) == ("healthy", {"apns": "closed"})
    assert (scaling["current"], scaling["desired"]) == (3, 1)
    assert not any(secret in told_lines for secret in ("apns:t1", "Hey!", "New message", "BEGIN"))


def test_under_up_the_part_works_without_a_port(
    store: NotificationStore, apple: ApnsStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.register_device("ann", "apns:t1")
    stop = threading.Event()
    with made("memory://") as backend:
        for name, value in environment(backend, store, apple, tmp_path).items():
            monkeypatch.setenv(name, value)
        running = threading.Thread(target=send_notifications, args=(backend, Settings(), stop), daemon=True)
        running.start()
        backend.queue("offline-queue").send([OutgoingMessage(missed().to_json())])

        eventually(lambda: len(apple.shown("t1")) == 1)
        stop.set()
        running.join(120)

    assert not running.is_alive()


def test_under_up_the_part_idles_while_no_queue_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SQS_PUSH_QUEUE_URL", "SQS_OFFLINE_QUEUE_URL"):
        monkeypatch.delenv(name, raising=False)
    stop = threading.Event()
    with connect("memory://") as backend:
        running = threading.Thread(target=send_notifications, args=(backend, Settings(), stop), daemon=True)
        running.start()

        idle = running.is_alive()
        stop.set()
        running.join(120)

    assert idle
    assert not running.is_alive()
