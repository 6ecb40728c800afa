"""The audit file: a chain that shows every cut."""

from __future__ import annotations

import hashlib
import json
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from postroad.errors import ConfigurationError, InvalidInput, StorageFull
from postroad.operations import AuditLog
from postroad.testing import FakeClock

ZEROS = "0" * 64
MANY = """
import sys
from pathlib import Path
from postroad.operations import AuditLog
for number in range(50):
    AuditLog(Path(sys.argv[1])).append("count", sys.argv[2], {"number": number})
"""


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "audit.jsonl")


def fill(log: AuditLog, count: int = 3) -> list[bytes]:
    for number in range(count):
        log.append("purge", f"queue-{number}", {"purged": number}, actor="ada")
    return log.path.read_bytes().splitlines(keepends=True)


def test_a_record_says_who_did_what_and_is_bound_to_the_one_before(tmp_path: Path) -> None:
    clock = FakeClock(now=datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC))
    log = AuditLog(tmp_path / "audit.jsonl", clock=clock)

    first = log.append("purge", "orders", {"purged": 3}, actor="ada")
    second = log.append("redrive", "orders-dlq", {}, actor="bob")

    assert (first.seq, first.at, first.actor, first.action) == (1, "2026-01-02T03:04:05.678Z", "ada", "purge")
    assert (first.target, first.detail, first.prev) == ("orders", {"purged": 3}, ZEROS)
    assert (second.seq, second.prev) == (2, first.hash)
    assert list(log.read()) == [first, second]


def test_the_hash_is_that_of_the_canonical_rest(log: AuditLog) -> None:
    log.append("purge", "órders", {"z": 1, "a": [1.5, None, True]}, actor="ada")

    written = json.loads(log.path.read_text())
    digest = written.pop("hash")

    assert hashlib.sha256(json.dumps(written, sort_keys=True, separators=(",", ":")).encode()).hexdigest() == digest


def test_only_its_owner_may_read_the_file(log: AuditLog) -> None:
    fill(log, 1)

    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_an_untouched_chain_holds(log: AuditLog) -> None:
    fill(log)

    check = log.verify()

    assert (check.ok, check.records, check.bad_line) == (True, 3, None)
    assert check.head == list(log.read())[-1].hash


def test_no_file_is_an_empty_chain(log: AuditLog) -> None:
    assert (log.verify().ok, log.verify().records, log.verify().head) == (True, 0, ZEROS)
    assert list(log.read()) == []


@pytest.mark.parametrize(
    ("damage", "bad_line"),
    [
        (lambda lines: [lines[0], lines[1].replace(b'"purged":1', b'"purged":9'), lines[2]], 2),
        (lambda lines: [lines[0].replace(b"ada", b"eve"), *lines[1:]], 1),
        (lambda lines: [lines[0], lines[2]], 2),
        (lambda lines: lines[1:], 1),
        (lambda lines: [lines[1], lines[0], lines[2]], 1),
        (lambda lines: [lines[0], lines[2], lines[1]], 2),
        (lambda lines: [lines[0], b"garbage\n", *lines[1:]], 2),
        (lambda lines: [lines[0], b"garbage\n", lines[2]], 2),
        (lambda lines: [lines[0], lines[0], *lines[1:]], 2),
        (lambda lines: [*lines, b"[" * 10_000 + b"\n"], 4),
        (lambda lines: [*lines, b'{"seq":4}\n'], 4),
    ],
)
def test_sec17_a_line_that_was_changed_removed_or_swapped_is_named(
    log: AuditLog, damage: object, bad_line: int
) -> None:
    lines = fill(log)

    log.path.write_bytes(b"".join(damage(lines)))  # type: ignore[operator]  # each case is a function
    check = log.verify()

    assert (check.ok, check.bad_line) == (False, bad_line)


def test_sec17_a_cut_tail_is_found_by_the_head_that_was_noted(log: AuditLog) -> None:
    lines = fill(log)
    head = log.verify().head

    log.path.write_bytes(b"".join(lines[:-1]))

    assert log.verify().ok
    assert (log.verify(head=head).ok, log.verify(head=head).bad_line) == (False, 3)


def test_a_head_that_was_noted_earlier_stays_in_the_chain(log: AuditLog) -> None:
    fill(log, 1)
    head = log.verify().head
    fill(log, 2)

    assert log.verify(head=head).ok
    assert log.verify(head=ZEROS).ok


@pytest.mark.parametrize("kept", [1, 40, -2])
def test_a_torn_last_line_is_reported_and_the_next_append_goes_on_behind_it(log: AuditLog, kept: int) -> None:
    lines = fill(log)
    log.path.write_bytes(b"".join(lines[:2]) + lines[2][:kept])

    torn = log.verify()
    log.append("purge", "after", {})
    mended = log.verify()

    assert (torn.ok, torn.bad_line, torn.records) == (False, 3, 2)
    assert (mended.ok, mended.records) == (True, 4)
    assert [record.action for record in log.read()] == ["purge", "purge", "recovered", "purge"]


def test_a_line_that_only_lost_its_end_is_a_record_still(log: AuditLog) -> None:
    lines = fill(log)
    log.path.write_bytes(b"".join(lines)[:-1])

    log.append("purge", "after", {})

    assert (log.verify().ok, log.verify().records) == (True, 4)


def test_a_file_that_is_nothing_but_a_torn_line_is_gone_on_with(log: AuditLog) -> None:
    log.path.write_bytes(b'{"seq":1,"at"')

    record = log.append("purge", "orders", {})

    assert record.seq == 2
    assert log.verify().ok


def test_processes_and_threads_append_to_one_chain(log: AuditLog) -> None:
    command = [sys.executable, "-c", MANY, str(log.path)]
    processes = [subprocess.Popen([*command, name]) for name in ("a", "b")]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: log.append("count", "c", {"number": number}), range(50)))
    codes = [process.wait(120) for process in processes]

    assert codes == [0, 0]
    assert (log.verify().ok, log.verify().records) == (True, 150)


@pytest.mark.parametrize("where", ["missing/audit.jsonl", "."])
def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, where: str) -> None:
    log = AuditLog(tmp_path / where)

    with pytest.raises(ConfigurationError, match="cannot be written"):
        log.append("purge", "orders", {})


def test_a_full_disk_leaves_the_chain_as_it_was(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fill(log)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(StorageFull, match="the disk is full; nothing was changed"):
        patch.setattr("os.fsync", full)
        log.append("purge", "orders", {})

    assert log.path.read_bytes().splitlines(keepends=True) == before
    assert log.verify().ok


def test_the_actor_is_the_one_who_was_told_or_the_user(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_ACTOR", "robot")
    robot = log.append("purge", "orders", {})
    monkeypatch.delenv("POSTROAD_ACTOR")
    user = log.append("purge", "orders", {})

    assert robot.actor == "robot"
    assert user.actor not in ("", "robot")


def test_the_file_lies_where_it_was_told_or_beside_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROAD_AUDIT_LOG", raising=False)
    monkeypatch.setenv("POSTROAD_URL", f"sqlite:///{tmp_path}/data/p.db")
    beside = AuditLog().path
    monkeypatch.setenv("POSTROAD_URL", "memory://")
    here = AuditLog().path
    monkeypatch.setenv("POSTROAD_AUDIT_LOG", str(tmp_path / "named.jsonl"))

    assert beside == tmp_path / "data" / "postroad-audit.jsonl"
    assert here == Path("postroad-audit.jsonl")
    assert AuditLog().path == tmp_path / "named.jsonl"


@pytest.mark.parametrize("detail", [{"rate": float("nan")}, {"at": datetime(2026, 1, 1, tzinfo=UTC)}, {("a",): 1}])
def test_a_detail_that_is_no_json_is_refused_by_name_and_nothing_is_recorded(log: AuditLog, detail: Any) -> None:
    fill(log)

    with pytest.raises(InvalidInput, match="detail") as caught:
        log.append("purge", "orders", detail)

    assert caught.value.field == "detail"
    assert log.verify().records == 3
