"""Workers killed at the worst moments: every message is stored once and shown once on each device."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.notifications.people import missed, push_to
from tests.notifications.senders.standins import ApnsStandIn, Fault, FcmStandIn, apns_stand_in, fcm_stand_in
from tests.waiting import eventually

from postroad import connect
from postroad.notifications import NotificationStore, RealtimeHook
from postroad.notifications.devices import offline_push_id
from postroad.queues import OutgoingMessage, QueueSpec, redrive
from postroad.queues.markers import read_dead
from postroad.wiring import Backend

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MESSAGES = int(os.environ.get("POSTROAD_TEST_CHAT_MESSAGES", "120"))
USERS = 10
STEPS = (
    "queue.receive.after_commit",
    "notifications.offline.mid",
    "queue.ack.before_commit",
    "outbox.after_publish",
    "outbox.before_settle",
    "notifications.push.after_send",
)


@pytest.fixture(scope="module")
def apple(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApnsStandIn]:
    with apns_stand_in(tmp_path_factory.mktemp("apple")) as apple:
        yield apple


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FcmStandIn]:
    with fcm_stand_in(tmp_path_factory.mktemp("google")) as google:
        yield google


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    with connect(f"sqlite:///{tmp_path}/bus.db") as backend:
        for name in ("push", "offline"):
            backend.create_queue(QueueSpec(f"{name}-dlq", retention=1_209_600))
            # Each death uses up a receive, and a provider's failures need three of them.
            backend.create_queue(QueueSpec(f"{name}-queue", visibility=2, dead_letter=f"{name}-dlq", max_receives=9))
        yield backend


class Workers:
    """Workers in processes of their own."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, failpoints: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.notifications.worker_process", json.dumps(self._settings)]
        environment = {**os.environ, "POSTROAD_FAILPOINTS": failpoints}
        worker = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
        self._running.append(worker)
        return worker

    def end(self) -> list[int]:
        """Stop those that run; how they ended."""
        running = [worker for worker in self._running if worker.poll() is None]
        for worker in running:
            worker.send_signal(signal.SIGTERM)
        return [worker.wait(120) for worker in running]

    def clear(self) -> None:
        for worker in self._running:
            worker.kill()
            worker.communicate(timeout=120)


@pytest.fixture
def workers(backend: Backend, store: NotificationStore, apple: ApnsStandIn, google: FcmStandIn) -> Iterator[Workers]:
    senders = {"apns": apple.arguments(), "fcm": google.arguments()}
    for arguments in senders.values():
        arguments.pop("token_provider", None)
        arguments["ca_file"] = str(arguments["ca_file"])
    options = {"retry_delays": (0.2, 0.2), "breaker_seconds": 0.5, "wait": 1.0}
    workers = Workers(url=backend.url, database=store.url, **senders, **options)
    yield workers
    workers.clear()


def is_idle(backend: Backend, store: NotificationStore) -> bool:
    """Whether nothing is left to do but dead letters."""
    for name in ("offline-queue", "push-queue"):
        stats = backend.queue(name).stats()
        if stats.visible or stats.in_flight or stats.delayed:
            return False
    return store.outbox.status().pending == 0


def tokens_of(user: int) -> dict[str, str]:
    """Two devices that live and one that is dead."""
    return {"apple": f"apns:a{user}", "google": f"fcm:g{user}", "dead": f"apns:d{user}"}


def test_messages_survive_killed_workers_failing_providers_and_dead_tokens(
    backend: Backend, store: NotificationStore, workers: Workers, apple: ApnsStandIn, google: FcmStandIn
) -> None:
    for user in range(USERS):
        for token in tokens_of(user).values():
            store.register_device(f"user{user}", token)
        apple.fail(f"d{user}", *[Fault(410, "Unregistered")] * MESSAGES)
        google.fail(f"g{user}", Fault(503, "UNAVAILABLE"), Fault(instead="reset"))
    # One device's pushes are refused until somebody repairs what is wrong with them.
    apple.fail("a0", *[Fault(400, "BadPriority")] * MESSAGES * 3)
    hook = RealtimeHook(backend.queue("offline-queue"), is_online=lambda user: False, deliver=lambda message: False)
    for number in range(MESSAGES):
        hook.on_message(missed(f"m{number}", user=f"user{number % USERS}", at=datetime.now(UTC)))

    first, second = workers.start(), workers.start()
    for victim, share in ((first, 4), (second, 2)):
        eventually(lambda share=share: len(apple.seen) >= MESSAGES // share)  # type: ignore[misc]
        victim.kill()
        workers.start()
    eventually(lambda: is_idle(backend, store))

    letters = backend.queue("push-dlq").peek(limit=1_000)
    reasons = [marker for letter in letters if (marker := read_dead(letter.attributes)) is not None]
    assert len(reasons) == len(letters)
    assert {marker.reason for marker in reasons} >= {"permanent"}
    assert all(marker.error for marker in reasons)
    assert backend.queue("offline-dlq").stats().visible == 0
    for user in range(USERS):
        mine = {f"m{number}" for number in range(MESSAGES) if number % USERS == user}
        assert {message.messageId for message in store.pending(f"user{user}", limit=1_000)} == mine
        assert {device.token for device in store.devices(f"user{user}")} == set(tokens_of(user).values()) - {
            f"apns:d{user}"
        }

    apple._faults.clear()
    google._faults.clear()
    report = redrive(backend, "push-dlq")
    eventually(lambda: is_idle(backend, store))

    assert report.moved == len(letters)
    assert workers.end() == [0, 0]
    assert backend.queue("push-dlq").stats().visible == 0
    for number in range(MESSAGES):
        results = store.results(offline_push_id(f"user{number % USERS}", f"m{number}"))
        assert {result.outcome for result in results} <= {"sent", "dead_token"}
    for user in range(USERS):
        count = sum(number % USERS == user for number in range(MESSAGES))
        assert (len(apple.shown(f"a{user}")), len(google.shown(f"g{user}"))) == (count, count)


@pytest.mark.long
def test_workers_that_die_at_every_step_leave_one_row_and_one_alert_for_each_message(
    backend: Backend, store: NotificationStore, workers: Workers, apple: ApnsStandIn
) -> None:
    store.register_device("kim", "apns:kim")
    offline = backend.queue("offline-queue")

    for failpoint in STEPS:
        offline.send([OutgoingMessage(missed(failpoint, user="kim").to_json())])
        assert workers.start(f"{failpoint}=kill9").wait(100) == -signal.SIGKILL
    workers.start()
    eventually(lambda: is_idle(backend, store) and len(apple.shown("kim")) == len(STEPS))

    assert workers.end() == [0]
    assert {message.messageId for message in store.pending("kim")} == set(STEPS)
    for failpoint in STEPS:
        assert [result.outcome for result in store.results(offline_push_id("kim", failpoint))] == ["sent"]
    assert len({seen.headers["apns-id"] for seen in apple.seen if seen.token == "kim"}) == len(STEPS)


def test_sigterm_gives_back_what_a_silent_provider_holds_up(
    backend: Backend, store: NotificationStore, workers: Workers, apple: ApnsStandIn
) -> None:
    apple.fail("silent", Fault(instead="silence"))
    backend.queue("push-queue").send([OutgoingMessage(push_to("apns:silent").to_json())])
    worker = workers.start()
    eventually(lambda: any(seen.token == "silent" for seen in apple.seen))

    began = time.monotonic()
    codes = workers.end()

    assert codes == [0]
    assert time.monotonic() - began < 60
    assert worker.stdout is not None
    assert worker.stdout.read().splitlines() == [b"ready", b"stopped"]
    stats = backend.queue("push-queue").stats()
    assert (stats.visible, stats.in_flight) == (1, 0)
