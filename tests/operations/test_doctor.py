"""What the doctor finds, and that looking changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.pooler import pooler
from tests.postgres import postgres, postgres_dsn

from postroad import OutgoingMessage, QueueSpec
from postroad.connections.application_file import FileState
from postroad.errors import ConfigurationError, InvalidInput, QueueNotFound, Unavailable
from postroad.operations import Finding, doctor
from postroad.operations.diagnosis import file_state_findings
from postroad.testing import FakeClock
from postroad.wiring import Backend, connect

__all__ = ["postgres", "postgres_dsn"]

DEAD = QueueSpec("orders-dlq", retention=1_209_600, redrive_allow=("orders",))
ORDERS = QueueSpec("orders", dead_letter="orders-dlq")
DAY = 86_400


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def _room_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    _give_room(monkeypatch, free=500, total=1_000)


def _give_room(monkeypatch: pytest.MonkeyPatch, *, free: int, total: int) -> None:
    """A disk with so many megabytes."""
    usage = SimpleNamespace(free=free * 1_000_000, total=total * 1_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)


@pytest.fixture(params=["sqlite", "memory"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Backend]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'postroad.db'}"
    with connect(url, clock=clock) as opened:
        yield opened


def make(backend: Backend, *specs: QueueSpec) -> None:
    for spec in specs:
        backend.create_queue(spec)


def codes(findings: tuple[Finding, ...]) -> list[tuple[str, str, str]]:
    return [(finding.code, finding.severity, finding.target) for finding in findings]


def test_a_topic_that_nobody_is_subscribed_to_is_found(backend: Backend) -> None:
    make(backend, DEAD, ORDERS)
    backend.topic("heard").subscribe(backend.queue("orders"))
    backend.topic("unheard")

    found = [finding for finding in doctor(backend) if finding.code == "topic-unheard"]

    assert [(finding.severity, finding.target) for finding in found] == [("warning", "unheard")]
    assert backend.topics_without_subscriptions() == ["unheard"]


def test_a_healthy_store_has_no_findings(backend: Backend) -> None:
    make(backend, DEAD, ORDERS)

    assert doctor(backend) == ()


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (replace(ORDERS, dead_letter=None), "no-dlq"),
        (replace(ORDERS, receive_wait=0), "short-poll"),
        (replace(ORDERS, max_receives=1), "max-receives-low"),
        (replace(ORDERS, visibility=19), "visibility-below-p99"),
    ],
)
def test_live_queues_are_judged_as_declared_ones_are(backend: Backend, spec: QueueSpec, code: str) -> None:
    make(backend, *([DEAD] if spec.dead_letter else []), spec)

    findings = doctor(backend, handler_p99={"orders": 10})

    assert codes(findings) == [(code, "warning", "orders")]


def test_dead_letters_that_expire_before_their_messages_are_an_error(backend: Backend) -> None:
    make(backend, replace(DEAD, retention=60), ORDERS)

    assert codes(doctor(backend)) == [("dlq-retention", "error", "orders-dlq")]


def test_a_dead_letter_queue_open_to_all_is_found(backend: Backend) -> None:
    make(backend, replace(DEAD, redrive_allow="all"), ORDERS)

    assert codes(doctor(backend)) == [("redrive-allow-open", "warning", "orders-dlq")]


def test_dead_letters_that_wait_are_found(backend: Backend) -> None:
    make(backend, DEAD, ORDERS)
    backend.queue("orders-dlq").send([OutgoingMessage("dead")])

    assert codes(doctor(backend)) == [("dlq-not-empty", "warning", "orders-dlq")]


def test_dead_letters_in_the_hands_of_somebody_wait_too(backend: Backend) -> None:
    make(backend, DEAD, ORDERS)
    backend.queue("orders-dlq").send([OutgoingMessage("dead")])
    backend.queue("orders-dlq").receive()

    assert codes(doctor(backend)) == [("dlq-not-empty", "warning", "orders-dlq")]


def test_dead_letters_about_to_expire_are_an_error(backend: Backend, clock: FakeClock) -> None:
    make(backend, DEAD, ORDERS)
    backend.queue("orders-dlq").send([OutgoingMessage("dead")])
    clock.advance(12 * DAY - 1)
    before = doctor(backend)

    clock.advance(2)

    assert [code for code, *_ in codes(before)] == ["dlq-not-empty"]
    found = doctor(backend)
    assert codes(found)[0] == ("dlq-expiring", "error", "orders-dlq")
    assert "48.0 hours" in found[0].message


def test_a_queue_whose_dead_letter_queue_is_gone_is_an_error(backend: Backend) -> None:
    make(backend, DEAD, ORDERS)
    backend.delete_queue("orders-dlq")

    assert codes(doctor(backend)) == [("unknown-reference", "error", "orders")]


@pytest.mark.parametrize("short", [timedelta(days=3), 3 * DAY])
def test_an_inbox_that_forgets_too_early_is_an_error(backend: Backend, short: Any) -> None:
    make(backend, DEAD, ORDERS)

    [finding] = doctor(backend, inbox_retention=short, outbox_horizon=1_000)

    assert (finding.code, finding.severity, finding.target) == ("inbox-window", "error", "orders")
    assert f"{3 * DAY} s" in finding.message
    assert f"{345_600 + 1_209_600 + 1_000} s" in finding.message


def test_the_window_is_the_horizon_and_both_retentions(backend: Backend) -> None:
    make(backend, DEAD, ORDERS)
    exactly = 345_600 + 1_209_600 + 16_672

    assert doctor(backend, inbox_retention=exactly) == ()
    assert codes(doctor(backend, inbox_retention=exactly - 1)) == [("inbox-window", "error", "orders")]
    assert codes(doctor(backend, outbox_horizon=30 * DAY)) == [("inbox-window", "error", "orders")]


def test_every_finding_has_a_remedy_and_errors_come_first(backend: Backend, clock: FakeClock) -> None:
    make(backend, replace(DEAD, redrive_allow="all"), replace(ORDERS, receive_wait=0))
    backend.queue("orders-dlq").send([OutgoingMessage("dead")])
    clock.advance(13 * DAY)

    findings = doctor(backend, inbox_retention=1, handler_p99={"orders": 100})

    assert [finding.severity for finding in findings] == ["error"] * 2 + ["warning"] * 4
    assert all(finding.remedy.endswith(".") and finding.target in finding.message for finding in findings)


def test_looking_changes_nothing(backend: Backend) -> None:
    make(backend, DEAD, ORDERS)
    backend.queue("orders-dlq").send([OutgoingMessage("dead")])
    doctor(backend)

    [message] = backend.queue("orders-dlq").peek()

    assert (message.receive_count, message.state) == (0, "visible")


def test_a_p99_of_a_queue_that_does_not_exist_is_refused(backend: Backend) -> None:
    make(backend, DEAD, ORDERS)

    with pytest.raises(QueueNotFound) as refused:
        doctor(backend, handler_p99={"ordres": 1})

    assert refused.value.nearest == "orders"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("handler_p99", {"orders": -1}),
        ("handler_p99", {"orders": "1"}),
        ("handler_p99", {"orders": float("nan")}),
        ("inbox_retention", -1),
        ("inbox_retention", "long"),
        ("outbox_horizon", float("inf")),
    ],
)
def test_numbers_that_mean_nothing_are_refused(backend: Backend, field: str, value: Any) -> None:
    make(backend, DEAD, ORDERS)

    with pytest.raises(InvalidInput, match=field):
        doctor(backend, **{field: value})


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (FileState("3.51.3", "wal"), []),
        (FileState("3.52.0", "wal"), []),
        (FileState("3.51.2", "wal"), [("sqlite-version", "error")]),
        (FileState("3.9.9", "delete"), [("sqlite-version", "error"), ("sqlite-sync", "error")]),
        (FileState("3.51.3", "delete"), [("sqlite-sync", "error")]),
    ],
)
def test_an_old_library_and_a_file_without_a_log_are_errors(state: FileState, found: list[tuple[str, str]]) -> None:
    findings = file_state_findings(Path("postroad.db"), state)

    assert [(finding.code, finding.severity) for finding in findings] == found


def test_the_file_of_the_engine_is_looked_at(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(f"sqlite:///{tmp_path / 'postroad.db'}", clock=clock) as backend:
        monkeypatch.setattr("postroad.connections.application_file.FIXED_VERSION", (99, 0, 0))

        assert codes(doctor(backend)) == [("sqlite-version", "error", str(tmp_path / "postroad.db"))]


def test_sec17_a_changed_byte_in_the_audit_file_is_an_error(tmp_path: Path) -> None:
    with connect(f"sqlite:///{tmp_path / 'postroad.db'}") as backend:
        log = backend.audit_log()
        assert log is not None
        log.append("purge", "orders", {"purged": 3})
        log.path.write_bytes(log.path.read_bytes().replace(b":3", b":4"))

        [finding] = doctor(backend)

        assert (finding.code, finding.severity, finding.target) == ("audit-chain", "error", str(log.path))
        assert "line 1" in finding.message


def test_an_application_file_with_a_log_and_an_old_library_is_found(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (x)")
    monkeypatch.setattr("postroad.connections.application_file.sqlite3.sqlite_version", "3.40.1")

    with connect("memory://", clock=clock) as backend:
        rolled_back = doctor(backend, dsn=f"sqlite:///{path}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.close()

        assert rolled_back == ()
        assert codes(doctor(backend, dsn=f"sqlite:///{path}")) == [("sqlite-version", "warning", str(path))]


@pytest.mark.parametrize("dsn", ["sqlite:///missing.db", "mysql://x", ""])
def test_a_dsn_that_names_nothing_is_refused(clock: FakeClock, dsn: str) -> None:
    with connect("memory://", clock=clock) as backend, pytest.raises(ConfigurationError):
        doctor(backend, dsn=dsn)


def test_the_file_of_the_engine_is_not_opened_as_an_application_s(tmp_path: Path) -> None:
    path = tmp_path / "postroad.db"

    with connect(f"sqlite:///{path}") as backend, pytest.raises(ConfigurationError, match="engine"):
        doctor(backend, dsn=f"sqlite:///{path}")


def test_a_server_of_one_s_own_is_no_pooler(postgres_dsn: str, clock: FakeClock) -> None:
    with connect("memory://", clock=clock) as backend:
        assert doctor(backend, dsn=postgres_dsn) == ()


@pytest.mark.parametrize("size", [1, 2])
def test_a_pooler_that_shares_its_connections_is_found(postgres_dsn: str, clock: FakeClock, size: int) -> None:
    with connect("memory://", clock=clock) as backend, pooler(postgres_dsn, size=size) as dsn:
        [finding] = doctor(backend, dsn=dsn)

        assert (finding.code, finding.severity) == ("pooler", "warning")


def test_a_server_that_cannot_be_reached_is_told(clock: FakeClock) -> None:
    with connect("memory://", clock=clock) as backend, pytest.raises(Unavailable):
        doctor(backend, dsn="postgresql://nobody@127.0.0.1:1/none")


@pytest.fixture
def file(tmp_path: Path, clock: FakeClock) -> Iterator[Backend]:
    """A backend in a file, with everything that lies beside it."""
    with connect(f"sqlite:///{tmp_path / 'postroad.db'}", clock=clock) as opened:
        opened.create_queue(DEAD)
        opened.create_queue(ORDERS)
        opened.queue("orders").send([OutgoingMessage("x" * 2_000_000)])
        log = opened.audit_log()
        assert log is not None
        log.append("purge", "orders", {})
        yield opened


@pytest.mark.parametrize("name", ["postroad.db", "postroad.db-wal", "postroad.db.blobs", "postroad-audit.jsonl"])
def test_a_file_that_others_may_read_is_an_error(file: Backend, tmp_path: Path, name: str) -> None:
    assert doctor(file) == ()

    (tmp_path / name).chmod(0o750)

    assert codes(doctor(file)) == [("file-mode", "error", str(tmp_path / name))]


@pytest.mark.parametrize("name", ["postroad.db.token", "postroad.db.tokens.json", "postroad.db.secret"])
def test_a_token_that_others_may_read_is_an_error(file: Backend, tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch(mode=0o644)

    assert codes(doctor(file)) == [("file-mode", "error", str(tmp_path / name))]


@pytest.mark.parametrize(("free", "total", "found"), [(199, 1_000, 1), (200, 4_001, 1), (200, 4_000, 0)])
def test_a_disk_that_is_almost_full_is_found(
    file: Backend, monkeypatch: pytest.MonkeyPatch, free: int, total: int, found: int
) -> None:
    _give_room(monkeypatch, free=free, total=total)

    assert [code for code, *_ in codes(doctor(file))] == ["disk-space"] * found


def test_a_log_that_does_not_start_anew_is_found(
    file: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("postroad.operations.diagnosis"), "MOST_LOG_BYTES", 0)

    assert codes(doctor(file)) == [("wal-size", "warning", str(tmp_path / "postroad.db-wal"))]


def test_a_clock_behind_the_stored_times_is_an_error(file: Backend, clock: FakeClock, tmp_path: Path) -> None:
    clock.set(datetime(2021, 1, 1, tzinfo=UTC))
    behind = {each for each in codes(doctor(file)) if each[0] == "clock"}

    clock.set(datetime(2019, 12, 31, tzinfo=UTC))

    assert ("clock", "error", str(tmp_path / "postroad.db")) in behind
    assert ("clock", "error", "clock") not in behind
    assert ("clock", "error", "clock") in codes(doctor(file))


def test_a_clock_behind_the_times_of_stored_messages_is_an_error(
    file: Backend, clock: FakeClock, tmp_path: Path
) -> None:
    assert not [each for each in codes(doctor(file)) if each[0] == "clock"]

    clock.step(-3_600)

    assert ("clock", "error", str(tmp_path / "postroad.db")) in codes(doctor(file))
