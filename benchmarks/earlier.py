"""Rows of Postroad beside itself at an earlier commit: what a change was meant to make faster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult

GROUPS = 10
_ROOT = Path(__file__).parents[1]
_BEFORE_ONE_RECEIVER = "3490b4dc2a4c27e52cba68753bd0da5403da4f3a"
"""The last commit at which each group's queue had the event validated, stored and pruned for itself."""
_PUBLISH = """
import sys, time, postroad

@postroad.event(name="benchmarks.placed")
class Placed:
    number: int

with postroad.connect(sys.argv[1]) as backend, backend.bus("bench") as bus:
    queues = [backend.bus("bench", f"group{n}") for n in range(int(sys.argv[2]))]
    print(postroad.__file__, flush=True)
    for line in sys.stdin:
        events = [Placed(number) for number in range(int(line))]
        started = time.perf_counter()
        results = bus.publish_many(events) if sys.argv[3] == "many" else map(bus.publish, events)
        sent = sum(result.ok for result in results)
        print(sent / (time.perf_counter() - started) if sent == int(line) else "lost", flush=True)
"""


def publishing(how: str, commit: str | None = None) -> Open:
    """A side that publishes events to ten groups, "many" in one call or "one" by one; events per second."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with tempfile.TemporaryDirectory() as extracted:
            source = _ROOT / "src" if commit is None else _extract(commit, Path(extracted))
            url = f"sqlite:///{directory / 'postroad.db'}"
            with subprocess.Popen(
                [sys.executable, "-c", _PUBLISH, url, str(GROUPS), how],
                env={**os.environ, "PYTHONPATH": str(source)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            ) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                if not process.stdout.readline().startswith(str(source)):
                    raise WrongResult(f"the process did not import {source}")
                yield Opened(lambda: _rate(process, load.messages))

    return opened


def _rate(process: subprocess.Popen[str], events: int) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{events}\n")
    answer = process.stdout.readline().strip()
    if not answer or answer == "lost":
        raise WrongResult("not every event was published")
    return float(answer)


def _extract(commit: str, directory: Path) -> Path:
    """Put the sources of an earlier commit into a directory."""
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=_ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True)
    return directory / "src"


def _known() -> str | None:
    """The short name of the earlier commit; None in a checkout without history."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "--verify", f"{_BEFORE_ONE_RECEIVER}^{{commit}}"],
        cwd=_ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    return found.stdout.strip() or None


def _row(name: str, how: str, what: str, target: float) -> Row:
    return Row(
        name=name,
        what=f"events published {what} to a topic with ten groups, on the embedded engine",
        unit="per_second",
        target=target,
        ours=Side(label="postroad", open=publishing(how)),
        peer=Side(label="postroad before", open=publishing(how, _BEFORE_ONE_RECEIVER), needs=_known),
        loads=Loads(full=Load(messages=1_000), quick=Load(messages=200), smallest=Load(messages=10)),
    )


ROWS = [
    _row("publish-10-groups", "many", "in one call", 1.3),
    _row("publish-10-groups-one", "one", "one by one", 1.3),
]
