"""What an archive holds: read in the order of each key, replayed to handlers or a session, or exported."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import msgspec

from postroad.blobs import BlobRef, Blobs
from postroad.bus.local import EventBus, local_part
from postroad.clock import Clock
from postroad.errors import BlobNotFound, InvalidInput, PostroadError
from postroad.events import Codec, Envelope, EventRegistry, uuid7
from postroad.queues import Pace
from postroad.receiving import HandlingContext, handling
from postroad.streams import TRIM_HORIZON, Stream, StreamRecord

PREFIX = "archive/"
_PAGE = 100
# The clocks of stores and processes differ by up to this; events that arrive later are not part of this reading.
_CLOCKS_DIFFER = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class ArchivedEvent:
    """An event in an archive.

    Attributes:
        envelope: The event as it was published.
        sequence: Its position in the archive, which grows within its shard.
    """

    envelope: Envelope
    sequence: str
    body: bytes = b""
    """The event as it was published, in the JSON form that its publisher wrote."""


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record whose envelope is too large for the stream."""

    postroad_blob: BlobRef


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record whose envelope cannot be read, and why."""

    sequence: str
    error: PostroadError


Selection = Callable[[Envelope], bool]
"""Returns whether an event is wanted."""


def selection(
    registry: EventRegistry,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    types: Collection[type[object] | str] | None = None,
    session_id: str | UUID | None = None,
) -> Selection:
    """Select events published from `since` on and before `until`, of these types and this session.

    Raises:
        InvalidInput: An argument cannot be used; `field` names it.
    """
    first, end, is_type = _moment("since", since), _moment("until", until), _type_test(registry, types)
    session = None if session_id is None else str(session_id)

    def takes(envelope: Envelope) -> bool:
        return (
            (first is None or envelope.created_at >= first)
            and (end is None or envelope.created_at < end)
            and is_type(envelope.event_type)
            and (session is None or envelope.session_id == session)
        )

    return takes


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one archive's stream."""

    stream: Stream
    codec: Codec
    blobs: Blobs | None
    now: Callable[[], datetime]
    prefix: str = PREFIX
    """The prefix of the blobs that records may refer to."""

    def read(self, wanted: Selection) -> Iterator[ArchivedEvent | Unreadable]:
        """Yield what is there now: each key in its order, different keys by the time of publishing."""
        latest = self.now() + _CLOCKS_DIFFER
        shards = [self._shard(shard, wanted, latest) for shard in self.stream.shards()]
        for _, found in heapq.merge(*shards, key=lambda each: each[0]):
            yield found

    def _shard(
        self, shard: str, wanted: Selection, latest: datetime
    ) -> Iterator[tuple[datetime, ArchivedEvent | Unreadable]]:
        for record in self._records(shard, latest):
            try:
                body = self.whole(record.data)
                envelope = self.codec.decode(body)
            except PostroadError as error:
                yield record.arrived_at, Unreadable(record.sequence, error)
                continue
            if wanted(envelope):
                yield envelope.created_at, ArchivedEvent(envelope, record.sequence, body)

    def _records(self, shard: str, latest: datetime) -> Iterator[StreamRecord]:
        after = TRIM_HORIZON
        while page := self.stream.read(shard, after=after, limit=_PAGE):
            for record in page:
                if record.arrived_at > latest:
                    return
                yield record
            after = page[-1].sequence

    def reference(self, blobs: Blobs, key: str, data: bytes) -> bytes:
        """Put an envelope that is too large for the stream into a blob, and return the record that refers to it."""
        return msgspec.json.encode(Reference(blobs.put(self.prefix + key, data)))

    def whole(self, data: bytes) -> bytes:
        """Return the envelope, or fetch it if the record is a reference, whose one key no envelope has."""
        if not data.startswith(b'{"postroad_blob"'):
            return data
        try:
            ref = msgspec.json.decode(data, type=Reference).postroad_blob
        except msgspec.DecodeError:
            return data
        if self.blobs is None or not ref.key.startswith(self.prefix):
            raise BlobNotFound(f"the record refers to the blob {ref.key!r}, which is not here")
        return self.blobs.get(ref)


def _moment(field: str, moment: object) -> datetime | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidInput(
            f"{field}: {moment!r} is not a datetime with a time zone", field=field, remedy="Use datetime.now(UTC)."
        )
    return moment.astimezone(UTC)


def _type_test(registry: EventRegistry, types: object) -> Callable[[str], bool]:
    """Return a test whether a name in an envelope means one of the wanted types; a class may have several names."""
    if types is None:
        return lambda name: True
    if isinstance(types, str) or not isinstance(types, Collection):
        raise InvalidInput(f"types: {types!r} is not a collection of classes or names", field="types")
    for each in types:
        if not isinstance(each, str):
            registry.name_of(each)
    wanted = frozenset(types)
    return lambda name: name in wanted or registry.find(name) in wanted


Deliver = Callable[[ArchivedEvent], None]
"""Delivers one event; if it raises, that counts as a failure of the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """How many events a replay read, delivered, skipped as copies, and failed to deliver.

    Attributes:
        read: Events read.
        replayed: Events delivered.
        duplicates: Copies that were skipped.
        failed: Events whose delivery failed.
    """

    read: int
    replayed: int
    duplicates: int
    failed: int


def deliverer(to: object, codec: Codec) -> Deliver:
    """Return the function that delivers an event to a function, the handlers of a bus here, or a session."""
    act: Callable[[object], object]
    if callable(reduce := getattr(to, "reduce", None)):
        act = reduce
    elif isinstance(to, EventBus):
        act = partial(_publish_here, local_part(to))
    elif callable(to):
        act = to
    else:
        why = f"to: {type(to).__name__} is neither a function nor a bus nor something with reduce(event)"
        raise InvalidInput(why, field="to", remedy="Pass a function, a bus or a session.")

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
    """Deliver each event once. A failure is counted and stops nothing."""
    pace = Pace(rate, monotonic=clock.monotonic, sleep=time.sleep)
    seen: set[bytes] = set()
    read = replayed = duplicates = failed = 0
    for each in found:
        read += 1
        if isinstance(each, Unreadable):
            failed += 1
            continue
        # All ids of an archive are kept, sixteen bytes each, because a copy may come anywhere later.
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


def _publish_here(local: EventBus, event: object) -> None:
    if errors := local.publish(event).errors:
        raise errors[0].error


_MOST_BYTES = 8_388_608


def export(events: Iterable[ArchivedEvent], blobs: Blobs, *, topic: str) -> list[BlobRef]:
    """Write each event once; each export has a folder of its own, whose blobs hold up to 8 MiB or one event."""
    folder = f"export/topic={topic.removesuffix('.fifo')}/{uuid7().hex}"
    return [blobs.put(f"{folder}/{number:06d}.jsonl", data) for number, data in enumerate(_files(_lines(events)))]


def _lines(events: Iterable[ArchivedEvent]) -> Iterator[bytes]:
    seen: set[bytes] = set()
    for each in events:
        event_id = each.envelope.event_id.bytes
        if event_id not in seen:
            seen.add(event_id)
            # A body of several lines becomes one line.
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
