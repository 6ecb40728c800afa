"""Dispatchers as child processes, what they published, and whether the order of keys was kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from benchmarks.postgres import database, programs, running
from psycopg.conninfo import conninfo_to_dict

ROOT = Path(__file__).parents[3]


class Publication(NamedTuple):
    """One message that the target took."""

    group: str
    seq: int
    event_id: str


class Dispatchers:
    """Child processes that dispatch one outbox into one file."""

    def __init__(self, dsn: str, directory: Path, **config: Any) -> None:
        self._dsn = dsn
        self._path = directory / "published"
        self._path.touch()
        self._config = json.dumps(config)
        self.running: list[subprocess.Popen[str]] = []

    def start(self, failpoints: str = "", *, failures: float = 0.0, poison: int = 0) -> subprocess.Popen[str]:
        """Start one more."""
        command = [sys.executable, "-m", "tests.outbox.dispatching.child", self._dsn, str(self._path), self._config]
        environment = {**os.environ, "POSTROAD_FAILPOINTS": failpoints}
        seed = len(self.running)
        process = subprocess.Popen(
            [*command, str(failures), str(seed), str(poison)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process

    def start_and_wait(self, *, failures: float, poison: int) -> None:
        """Start one more, and wait until it is at work."""
        process = self.start(failures=failures, poison=poison)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    def alive(self) -> list[subprocess.Popen[str]]:
        """Those that still run."""
        return [process for process in self.running if process.poll() is None]

    def published(self) -> list[Publication]:
        """What the target took so far, in order."""
        lines = [line.split(" ") for line in self._path.read_text().splitlines()]
        return [Publication(group, int(seq), event_id) for group, seq, event_id in lines]

    def end(self) -> None:
        """Kill whatever still runs."""
        for process in self.running:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def stopped(process: subprocess.Popen[str]) -> dict[str, int]:
    """Tell it to stop, and give its report."""
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    report: dict[str, int] = json.loads(out.splitlines()[-1])
    return report


def check_order(published: list[Publication]) -> None:
    """Refuse a history in which an event was published for the first time after a later one of its key.

    An event may be published again at any time, as an exact repetition under the same id: deduplication and inbox see
    to that. So only the first publication of each event counts, and of each key these must be in the order of `seq`.
    """
    firsts: dict[str, dict[str, int]] = defaultdict(dict)
    for group, seq, event_id in published:
        known = firsts[group].setdefault(event_id, seq)
        assert known == seq, f"event {event_id} changed its number from {known} to {seq}"
    for group, numbers in firsts.items():
        order = list(numbers.values())
        assert order == sorted(order), f"key {group} was published in the order {order}"


@contextmanager
def crashing_postgres(directory: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """A database on a server of its own, and what lets the server crash, as a power cut would, and start again."""
    with running(directory) as server:
        try:
            with database(server) as dsn:
                yield dsn, lambda: _pg_ctl(server, "restart", "-m", "immediate", "-w")
        finally:
            _pg_ctl(server, "stop", "-m", "immediate", "-w")


def stop_the_writer_of_the_log(dsn: str) -> Callable[[], None]:
    """Let nothing reach the disk that no commit waits for; what kills the writer, which crashes the server."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'").fetchone()
    assert found is not None
    pid: int = found[0]
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGKILL)


def _pg_ctl(dsn: str, *arguments: str) -> None:
    folder = programs()
    assert folder is not None
    data = str(conninfo_to_dict(dsn)["host"])
    quiet = subprocess.DEVNULL
    subprocess.run(
        [str(folder / "pg_ctl"), "-D", data, "-s", *arguments],
        cwd="/",
        user=Path(data).stat().st_uid,
        check=True,
        stdout=quiet,
        stderr=quiet,
        stdin=quiet,
    )
