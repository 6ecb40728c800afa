"""`postroad notifications`: what cannot work is refused by the name of the variable, and changes nothing."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.cli.terminal import Postroad
from tests.notifications.people import missed

from postroad.cli.call import Call
from postroad.cli.notifications import _where
from postroad.notifications import NotificationStore, OfflineProcessor, TokenResult
from postroad.settings import notification_settings

WORKING = {
    "SQS_PUSH_QUEUE_URL": "chat-push",
    "SQS_OFFLINE_QUEUE_URL": "http://localhost:9324/000000000000/chat-offline",
    "NOTIFICATIONS_DATABASE_URL": "sqlite:///chat.db",
    "HEALTH_PORT": "0",
    "POSTROAD_URL": "sqlite:///bus.db",
}
APNS = {"APNS_KEY_FILE": "key.p8", "APNS_KEY_ID": "ABC123DEFG", "APNS_TEAM_ID": "DEF123GHIJ", "APNS_TOPIC": "com.chat"}
KEY = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0LXNlY3JldC1zZWNyZXQ=\n-----END PRIVATE KEY-----\n"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in WORKING.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "key.p8").write_text(KEY)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"HEALTH_PORT": "abc"}, "HEALTH_PORT"),
        ({"HEALTH_PORT": "65536"}, "HEALTH_PORT"),
        ({"HEALTH_HOST": "203.0.113.1"}, "HEALTH_PORT"),
        ({"WORKER_BATCH_SIZE": "0"}, "WORKER_BATCH_SIZE"),
        ({"WORKER_BATCH_SIZE": "11"}, "WORKER_BATCH_SIZE"),
        ({"WORKER_POLL_INTERVAL_MS": "-1"}, "WORKER_POLL_INTERVAL_MS"),
        ({"WORKER_VISIBILITY_TIMEOUT": "0"}, "WORKER_VISIBILITY_TIMEOUT"),
        ({"WORKER_MAX_TASKS": "many"}, "WORKER_MAX_TASKS"),
        ({"WORKER_MIN_TASKS": "-1"}, "WORKER_MIN_TASKS"),
        ({"WORKER_MIN_TASKS": "3", "WORKER_MAX_TASKS": "2"}, "WORKER_MIN_TASKS"),
        ({"WORKER_KEEP_DELIVERED_DAYS": "-1"}, "WORKER_KEEP_DELIVERED_DAYS"),
        ({"WORKER_KEEP_RESULTS_DAYS": "ever"}, "WORKER_KEEP_RESULTS_DAYS"),
        ({"NOTIFICATIONS_DATABASE_URL": ""}, "NOTIFICATIONS_DATABASE_URL"),
        ({"NOTIFICATIONS_DATABASE_URL": "mysql://chat"}, "NOTIFICATIONS_DATABASE_URL"),
        ({"SQS_PUSH_QUEUE_URL": "", "SQS_OFFLINE_QUEUE_URL": ""}, "SQS_PUSH_QUEUE_URL"),
        ({"SQS_PUSH_QUEUE_URL": "no such name"}, "SQS_PUSH_QUEUE_URL"),
        ({"APNS_KEY_ID": "ABC123DEFG"}, "APNS_KEY_FILE"),
        ({**APNS, "APNS_TOPIC": ""}, "APNS_TOPIC"),
        ({**APNS, "APNS_KEY_FILE": "nowhere.p8"}, "APNS_KEY_FILE"),
        (APNS, "APNS_KEY_FILE"),
        ({"FCM_PROJECT_ID": "chat"}, "FCM_CREDENTIALS_FILE"),
        ({"FCM_PROJECT_ID": "chat", "FCM_CREDENTIALS_FILE": "key.p8"}, "FCM_CREDENTIALS_FILE"),
    ],
)
def test_a_variable_that_cannot_work_is_named(
    environment: None,
    postroad: Postroad,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changes: dict[str, str],
    named: str,
) -> None:
    for name, value in changes.items():
        monkeypatch.setenv(name, value)

    answer = postroad("notifications", "worker")

    assert answer.code == 2
    assert named in answer.err.splitlines()[-2]
    assert "c2VjcmV0" not in answer.err
    assert not (tmp_path / "chat.db").exists() or "queue" in answer.err


def test_a_port_in_use_is_named(environment: None, postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("HEALTH_PORT", str(taken.getsockname()[1]))

        answer = postroad("notifications", "worker")

    assert answer.code == 2
    assert "HEALTH_PORT" in answer.err


@pytest.mark.parametrize("url", ["sqlite:///bus.db", "sqlite:///./bus.db", "sqlite:///link.db"])
def test_a_database_in_the_engines_own_file_is_refused_naming_both(
    environment: None, postroad: Postroad, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str
) -> None:
    (tmp_path / "link.db").symlink_to("bus.db")
    monkeypatch.setenv("NOTIFICATIONS_DATABASE_URL", url)

    answer = postroad("notifications", "worker")

    assert answer.code == 2
    assert "NOTIFICATIONS_DATABASE_URL" in answer.err
    assert f"backend's own file {tmp_path / 'bus.db'}" in answer.err.replace("\n", "")
    assert not (tmp_path / "bus.db").exists()


def test_a_queue_that_is_not_there_is_named(environment: None, postroad: Postroad) -> None:
    answer = postroad("notifications", "worker")

    assert answer.code == 2
    assert "chat-push" in answer.err


@pytest.mark.parametrize(
    ("queues", "region", "url"),
    [
        ({"PUSH": "https://sqs.eu-central-1.amazonaws.com/123456789012/q"}, "", "aws://eu-central-1"),
        ({"PUSH": "chat", "OFFLINE": "https://sqs.eu-central-1.amazonaws.com/1/q"}, "us-east-1", "aws://us-east-1"),
        (
            {"OFFLINE": "http://localhost:9324/1/q"},
            "us-east-1",
            "aws://us-east-1?endpoint_url=http%3A%2F%2Flocalhost%3A9324",
        ),
        ({"PUSH": "chat"}, "us-east-1", None),
    ],
)
def test_a_queues_url_tells_where_it_is_unless_a_backend_is_named(
    queues: dict[str, str], region: str, url: str | None
) -> None:
    told = notification_settings({"AWS_REGION": region} | {f"SQS_{name}_QUEUE_URL": at for name, at in queues.items()})

    assert _where(Call(), told).url == url
    assert _where(Call(url="sqlite:///bus.db"), told).url == "sqlite:///bus.db"


def test_the_command_deletes_what_a_worker_would(
    postroad: Postroad, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    monkeypatch.setenv("NOTIFICATIONS_DATABASE_URL", url)
    with NotificationStore(url) as store:
        OfflineProcessor(store).handle_all([missed("m1"), missed("m2")])
        store.mark_delivered("ann", ["m1"])

    kept = postroad("notifications", "prune", "--json")
    monkeypatch.setenv("WORKER_KEEP_UNDELIVERED_DAYS", "0")
    pruned = postroad("notifications", "prune", "--keep-delivered", "0", "--json")
    refused = postroad("notifications", "prune", "--keep-results", "soon")

    nothing = {"delivered": 0, "undelivered": 0, "results": 0, "outbox": 0}
    assert kept.document == nothing
    assert pruned.document == nothing | {"delivered": 1, "undelivered": 1}
    assert (refused.code, "--keep-results" in refused.err) == (2, True)


def test_scaling_says_how_many_workers_there_should_be_while_none_runs(
    environment: None, postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_MIN_TASKS", "0")
    for name in ("chat-push", "chat-offline"):
        assert postroad("queue", "create", name).code == 0

    idle = postroad("notifications", "scaling", "--current", "1", "--json")
    assert postroad("queue", "send", "chat-offline", "--body", missed("m1").to_json()).code == 0
    waiting = postroad("notifications", "scaling", "--current", "0", "--json")

    assert (idle.code, idle.document["desired"]) == (0, 0)
    assert waiting.document["desired"] == 1
    assert waiting.document["backlogPerTask"] == {"push": 0.0, "offline": 1.0}
    assert "1 worker, now 0" in postroad("notifications", "scaling", "--current", "0").out


@pytest.mark.parametrize("changes", [{"SQS_PUSH_QUEUE_URL": "", "SQS_OFFLINE_QUEUE_URL": ""}, {}])
def test_scaling_names_a_queue_that_is_missing(
    environment: None, postroad: Postroad, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]
) -> None:
    for name, value in changes.items():
        monkeypatch.setenv(name, value)

    postroad("queue", "create", "other")

    answer = postroad("notifications", "scaling")

    assert answer.code == 2
    assert ("SQS_PUSH_QUEUE_URL" if changes else "chat-push") in answer.err


@pytest.mark.usefixtures("environment")
def test_a_user_is_shown_to_people_and_as_a_document(postroad: Postroad) -> None:
    with NotificationStore("sqlite:///chat.db") as store:
        store.register_device("ann", "phone-token", "fcm")
        OfflineProcessor(store).handle(missed("m1"))
        store.record("p-1", [TokenResult("phone-token", "dead_token", 404, "UNREGISTERED")], asked_at=datetime.now(UTC))

    shown = postroad("notifications", "show", "ann")
    document = postroad("notifications", "show", "ann", "--json").document

    assert document.keys() == {"user_id", "devices", "pending", "pending_total", "results"}
    assert document["results"][0]["reason"] == "UNREGISTERED"
    assert "1 message waiting" in shown.out
    assert "UNREGISTERED" in shown.out
    assert "phone-token" not in shown.out + json.dumps(document)


@pytest.mark.usefixtures("environment")
def test_a_user_that_nobody_knows_is_exit_1_and_makes_no_file(postroad: Postroad) -> None:
    missing = postroad("notifications", "show", "ann")
    was_made = Path("chat.db").exists()
    NotificationStore("sqlite:///chat.db").close()

    unknown = postroad("notifications", "show", "ann")

    assert (missing.code, was_made) == (1, False)
    assert (unknown.code, unknown.err.startswith('error: nothing is known of user "ann"')) == (1, True)
