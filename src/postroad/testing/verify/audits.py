"""What no client can see, looked up after the drain: the file, its blobs, its counters and its memory of repeats."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from postroad.queues import OutgoingMessage, Queue
from postroad.testing.verify.history import History
from postroad.testing.verify.scenario import Place
from postroad.testing.verify.workload import check, effects_of, held, peeked

_INTEGRITY = """
import sqlite3, sys
file = sqlite3.connect(sys.argv[1])
print(*(row[0] for row in file.execute("PRAGMA integrity_check")), sep="; ")
"""
_REPEATS = 20


class _Line(msgspec.Struct):
    op: str
    outcome: str
    id: str = ""


class Published(msgspec.Struct):
    """How many messages clients published, as their histories say."""

    ok: int
    unknown: int


def published(place: Place) -> Published:
    """Read the histories of all clients."""
    outcomes: dict[str, str] = {}
    decode = msgspec.json.Decoder(_Line).decode
    for path in place.history.glob("*.jsonl"):
        for raw in path.read_bytes().splitlines():
            if b'"op":"publish"' in raw and raw.endswith(b"}"):
                line = decode(raw)
                outcomes[line.id] = line.outcome
    values = list(outcomes.values())
    return Published(ok=values.count("ok"), unknown=values.count("unknown"))


def audit_file(place: Place, history: History) -> None:
    """Check the embedded file with another program's SQLite, which must not open it in this process (I27)."""
    path = place.url.removeprefix("sqlite:///")
    if path == place.url:
        return
    command = [sys.executable, "-c", _INTEGRITY, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip()
    check(history, "I27", said == "ok", f"integrity_check: {said[-500:]}")


def audit_queue(place: Place, history: History, name: str, *, dead: str, deduplicates: bool = False) -> None:
    """Check the counters of a drained queue, and its blobs (I27, I28); with deduplication also I6 and I20."""
    with place.backend() as backend:
        counters = {each.spec.name: each.counters for each in backend.overviews([name])}[name]
        if counters is None:
            return
        queue, letters = backend.queue(name), list(peeked(backend.queue(dead)))
        left, clients = held(queue), published(place)
        gone = counters.acked + counters.dead + counters.expired + left
        check(history, "I28", counters.sent == gone, f"{name}: sent {counters.sent}, settled and left {gone}")
        check(history, "I28", counters.dead == len(letters), f"{name}: dead {counters.dead}, found {len(letters)}")
        if deduplicates:
            most = clients.ok + clients.unknown
            check(history, "I6", counters.sent <= most, f"{name}: {counters.sent} messages, {most} published")
            check(history, "I28", counters.sent >= clients.ok, f"{name}: sent {counters.sent}, {clients.ok} were ok")
            _audit_repeats(place, history, queue)
        limit = backend.queue_spec(name).max_message_bytes
        large = sum(len(letter.body) > limit for letter in letters)
    _audit_blobs(place, history, referenced=large)


def _audit_repeats(place: Place, history: History, queue: Queue) -> None:
    """Send ids again that were handled a moment ago: none of them may become a message."""
    ids = sorted(effects_of(place, queue.name, last=_REPEATS))
    before = held(queue)
    for each in ids:
        queue.send([OutgoingMessage("repeated", group="repeated", dedup_id=each)])
    more = held(queue) - before
    check(history, "I20", more == 0, f"{more} of {len(ids)} repeated ids were stored again")


def _audit_blobs(place: Place, history: History, *, referenced: int) -> None:
    """Compare the stored blobs with the dead letters that refer to one; acked messages leave theirs to the pruning."""
    stored = sum(path.is_file() for path in Path(place.url.removeprefix("sqlite:///") + ".blobs").rglob("*"))
    check(history, "I27", referenced <= stored, f"{stored} blobs, {referenced} referenced")
