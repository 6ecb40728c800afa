"""What no client can see, looked up after the drain: the file, its blobs, its counters, its memory of repeats, and what
SIGTERM leaves behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from postroad.blobs import DirectoryBlobs
from postroad.clock import SYSTEM_CLOCK
from postroad.errors import QueueNotFound
from postroad.queues import ATTRIBUTE, KEEP_FOR, PREFIX, Delivery, OutgoingMessage, PeekedMessage, QueueSpec
from postroad.receiving import Ack, Receiver
from postroad.signals import die_with_parent, stopped_by_signals
from postroad.testing.checker import check as read_history
from postroad.testing.clock import FakeClock
from postroad.testing.verify.nemeses import RunFailed
from postroad.testing.verify.scenario import History, Place
from postroad.testing.verify.workload import effects_of, held, peeked
from postroad.wiring import Backend

_INTEGRITY = """
import sqlite3, sys
file = sqlite3.connect(sys.argv[1])
print(*(row[0] for row in file.execute("PRAGMA integrity_check")), sep="; ")
"""
_REPEATS = 20
_DAY_SECONDS = 86_400.0
_QUEUE = "verify-sigterm"
_MESSAGES = 10
_VISIBILITY_SECONDS = 600.0
_END_SECONDS = 60.0
_WAIT_SECONDS = 1.0


def audit_file(place: Place, history: History) -> None:
    """Check the embedded file and its blobs (I27)."""
    path = place.url.removeprefix("sqlite:///")
    if path != place.url:
        # By another program's SQLite, which must not open the file in this process.
        command = [sys.executable, "-c", _INTEGRITY, path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = (done.stdout + done.stderr).strip()
        history.check("I27", said == "ok", f"integrity_check: {said[-500:]}")
        audit_references(place, history)
        audit_sweep(Path(f"{path}.blobs"), Path(place.directory), history)


def audit_references(place: Place, history: History) -> None:
    """Read every message that is left in a queue, dead letters included: none may refer to a blob that is gone."""
    left: list[PeekedMessage] = []
    with place.backend() as backend:
        for name in backend.queues():
            # The store removes the own queue of a killed process at any time.
            with suppress(QueueNotFound):
                left += peeked(backend.queue(name))
    # Only a message whose blob cannot be read is shown with the mark of its reference.
    missing = sum(ATTRIBUTE in message.attributes for message in left)
    history.check("I27", missing == 0, f"{missing} of {len(left)} messages refer to a missing blob")


def audit_sweep(blobs: Path, directory: Path, history: History) -> None:
    """Check that no large body stays for ever: blobs outlive their messages, but not the longest retention.

    A copy of them is swept as when all messages have expired, those of killed senders included.
    """
    if not blobs.exists():
        return
    copy = directory / "swept"
    shutil.copytree(blobs, copy)
    later = FakeClock(SYSTEM_CLOCK.now())
    later.advance(KEEP_FOR + _DAY_SECONDS)
    DirectoryBlobs(copy, later).prune(PREFIX, older_than=KEEP_FOR)
    rest = sum(path.is_file() for path in (copy / PREFIX).rglob("*"))
    shutil.rmtree(copy)
    history.check("I27", rest == 0, f"{rest} blobs would stay when all messages have expired")


def audit_queue(
    place: Place, backend: Backend, history: History, name: str, *, dead: str, deduplicates: bool = False
) -> None:
    """Check the counters of a drained queue (I28); with deduplication also I6 and I20."""
    counters = {each.spec.name: each.counters for each in backend.overviews([name])}[name]
    if counters is None:
        return
    queue, letters = backend.queue(name), list(peeked(backend.queue(dead)))
    gone = counters.acked + counters.dead + counters.expired + held(queue)
    history.check("I28", counters.sent == gone, f"{name}: sent {counters.sent}, settled and left {gone}")
    history.check("I28", counters.dead == len(letters), f"{name}: dead {counters.dead}, found {len(letters)}")
    if deduplicates:
        counts = read_history(Path(place.report)).counts
        ok, most = counts.publishes_ok, counts.publishes_ok + counts.publishes_unknown
        history.check("I6", counters.sent <= most, f"{name}: {counters.sent} messages, {most} published")
        history.check("I28", counters.sent >= ok, f"{name}: sent {counters.sent}, {ok} were ok")
        # Each fault may hide one receive: its caller never wrote it down.
        faults = counts.kills + counts.pauses + counts.restarts + counts.proxy_faults
        unseen = counters.received - counts.deliveries
        seen = f"received {counters.received}, {counts.deliveries} were written down, with {faults} faults"
        history.check("I28", 0 <= unseen <= faults, f"{name}: {seen}")
        # Ids that were handled a moment ago are sent again: none of them may become a message.
        ids, before = sorted(effects_of(place, queue.name, last=_REPEATS)), held(queue)
        for each in ids:
            queue.send([OutgoingMessage("repeated", group="repeated", dedup_id=each)])
        more = held(queue) - before
        history.check("I20", more == 0, f"{more} of {len(ids)} repeated ids were stored again")


def audit_sigterm(place: Place, history: History) -> None:
    """Let a process hold messages for a long visibility, end it by SIGTERM, and receive what it had not handled (I30).

    Raises:
        RunFailed: The process did not begin, or did not end.
    """
    with place.backend() as backend:
        queue = backend.create_queue(QueueSpec(_QUEUE, visibility=_VISIBILITY_SECONDS))
        queue.send([OutgoingMessage(str(number)) for number in range(_MESSAGES)])
        _hold_and_end(place)
        left, taken = held(queue), 0
        while page := queue.receive(max_messages=_MESSAGES, wait=_WAIT_SECONDS):
            taken += len(page)
    detail = f"{taken} of {left} messages could be received after a SIGTERM; {_MESSAGES} were sent, one was handled"
    history.check("I30", taken == left, detail)


def _hold_and_end(place: Place) -> None:
    """Run a process until it holds messages, and wait until SIGTERM has ended it."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(place) + b"\n")
            process.stdin.flush()
            if not process.stdout.readline():
                raise RunFailed(f"a receiver ended with {process.wait(_END_SECONDS)} before it held a message")
            process.send_signal(signal.SIGTERM)
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise RunFailed("a receiver did not end after SIGTERM") from None
        finally:
            process.kill()


def main() -> None:
    """Receive until SIGTERM, with a handler that takes until then; it announces on stdout that it runs."""
    die_with_parent(os.getppid())
    # A parent that died before has closed the pipe, and there is no line.
    place = msgspec.json.decode(sys.stdin.buffer.readline(), type=Place)
    with place.backend() as backend, stopped_by_signals() as stop:

        def decide(delivery: Delivery) -> Ack:
            print("holding", flush=True)
            stop.wait()
            return Ack()

        Receiver(backend.queue(_QUEUE), decide, batch=_MESSAGES, wait=_WAIT_SECONDS).run(stop)


if __name__ == "__main__":
    main()
