"""The log begins again at its usual length, although others read while it is copied, and waits for nobody for long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from postroad.engine import disk
from postroad.engine.engine import Engine
from postroad.engine.transaction import Transaction

_PAGE_IN_LOG = 4_096 + 24


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(disk, "CHECKPOINT_PAGES", 40)
    return tmp_path / "postroad.db"


@pytest.fixture
def ours(path: Path) -> Iterator[Engine]:
    engine = Engine(path)
    engine.write(lambda tx: tx.connection.execute("CREATE TABLE number (n)"))
    yield engine
    engine.close()


@pytest.fixture
def theirs(ours: Engine) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(ours.path))
    connection.wal_autocheckpoint(0)
    yield connection
    connection.close()


def _add(n: int) -> Callable[[Transaction], object]:
    return lambda tx: tx.connection.execute("INSERT INTO number VALUES (?)", (n,))


def _pages_in_log(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size // _PAGE_IN_LOG


def test_the_log_begins_again_although_somebody_reads_whenever_it_is_copied(
    ours: Engine, theirs: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = []

    def stop_reading(name: str) -> None:
        copied.append(name)
        theirs.execute("COMMIT")

    monkeypatch.setattr("postroad.failpoints.hit", stop_reading)
    for n in range(400):
        theirs.execute("BEGIN")
        theirs.execute("SELECT * FROM number").fetchall()
        ours.write(_add(n))
        if theirs.in_transaction:
            theirs.execute("COMMIT")

    assert len(copied) > 5
    assert _pages_in_log(ours.path) < 60


def test_a_long_read_delays_a_checkpoint_by_milliseconds_only_and_the_log_begins_again_after_it(
    ours: Engine, theirs: apsw.Connection
) -> None:
    theirs.execute("BEGIN")
    theirs.execute("SELECT * FROM number").fetchall()
    took = 0.0
    for n in range(200):
        began = time.monotonic()
        ours.write(_add(n))
        took = max(took, time.monotonic() - began)
    long = _pages_in_log(ours.path)

    theirs.execute("COMMIT")
    for n in range(400):
        ours.write(_add(n))

    assert took < 2.0
    assert long > 150
    assert _pages_in_log(ours.path) < long + 100
