"""Giving archived events to something again: to a function, to a bus's handlers here, or to a session."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec

from postroad.blobs import BlobRef, Blobs
from postroad.bus.archived import ArchivedEvent, Unreadable
from postroad.bus.local import EventBus, local_part
from postroad.clock import Clock
from postroad.errors import InvalidInput
from postroad.events import Codec, uuid7
from postroad.queues import Pace
from postroad.receiving import HandlingContext, handling

Deliver = Callable[[ArchivedEvent], None]
"""Gives one event on; what it raises counts as that event's failure."""


@runtime_checkable
class Reducing(Protocol):
    """What follows events one by one, such as a session."""

    def reduce(self, event: object) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay did with the events it was asked for."""

    read: int
    replayed: int
    duplicates: int
    """Further copies of an event id, passed over."""
    failed: int


def deliverer(to: object, codec: Codec) -> Deliver:
    """How an envelope is given to `to`."""
    act = _action(to)

    def deliver(archived: ArchivedEvent) -> None:
        envelope = archived.envelope
        event = codec.unwrap(envelope)
        with handling(HandlingContext(envelope=envelope, replayed=True, event=event)):
            act(event)

    return deliver


def replay(
    found: Iterable[ArchivedEvent | Unreadable],
    deliver: Deliver,
    *,
    clock: Clock,
    rate: float | None = None,
    dry_run: bool = False,
) -> ReplayReport:
    """Give each event on once. A failing one is counted and stops nothing."""
    pace = Pace(rate, monotonic=clock.monotonic, sleep=time.sleep)
    seen: set[bytes] = set()
    read = replayed = duplicates = failed = 0
    for each in found:
        read += 1
        if isinstance(each, Unreadable):
            failed += 1
            continue
        # Sixteen bytes an event: all ids of an archive are in hand, because a copy may stand anywhere behind.
        event_id = each.envelope.event_id.bytes
        if event_id in seen:
            duplicates += 1
            continue
        seen.add(event_id)
        if dry_run:
            continue
        pace.allowance()
        try:
            deliver(each)
            replayed += 1
        except Exception:
            failed += 1
        pace.spend(1)
    return ReplayReport(read=read, replayed=replayed, duplicates=duplicates, failed=failed)


def _action(to: object) -> Callable[[object], object]:
    if isinstance(to, Reducing):
        return to.reduce
    if isinstance(to, EventBus):
        return _locally(to)
    if callable(to):
        return to
    raise InvalidInput(
        f"to: {type(to).__name__} is neither a function nor a bus nor something with reduce(event)",
        field="to",
        remedy="Pass a function, a bus or a session.",
    )


def _locally(bus: EventBus) -> Callable[[object], object]:
    local = local_part(bus)

    def act(event: object) -> None:
        if errors := local.publish(event).errors:
            raise errors[0].error

    return act


_MOST_BYTES = 8_388_608


def export(events: Iterable[ArchivedEvent], blobs: Blobs, *, topic: str) -> list[BlobRef]:
    """Write each event once; the blobs of one export have names of their own and hold up to 8 MiB or one event."""
    folder = f"export/topic={topic.removesuffix('.fifo')}/{uuid7().hex}"
    files = enumerate(_files(_lines(events)))
    return [blobs.put(f"{folder}/{number:06d}.jsonl", data) for number, data in files]


def _lines(events: Iterable[ArchivedEvent]) -> Iterator[bytes]:
    seen: set[bytes] = set()
    for each in events:
        event_id = each.envelope.event_id.bytes
        if event_id not in seen:
            seen.add(event_id)
            # A body that somebody wrote over several lines becomes one.
            yield msgspec.json.format(each.body, indent=-1) + b"\n"


def _files(lines: Iterable[bytes]) -> Iterator[bytes]:
    gathered = bytearray()
    for line in lines:
        if gathered and len(gathered) + len(line) > _MOST_BYTES:
            yield bytes(gathered)
            gathered.clear()
        gathered += line
    if gathered:
        yield bytes(gathered)
