"""A journal that is written through EventBridge and read where the events arrive."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from postroad.blobs import Blobs
from postroad.connections import Again, Entry as Sent, deliver, translated
from postroad.errors import (
    ConfigurationError,
    EventTooLarge,
    InvalidEvent,
    NotSupported,
    OverflowMismatch,
    PostroadError,
    Unavailable,
)
from postroad.events import sendable
from postroad.journal.event import ATTRIBUTES, OVERFLOW, JournalEvent, check_event, keys_of
from postroad.journal.maintenance import Removes
from postroad.journal.overflow import MAX_ITEM_BYTES, Overflow, checked_pointer
from postroad.journal.port import AppendResult, Appends, Journal, Page
from postroad.journal.records import checked_entry
from postroad.journal.store import Followed, Follows

DETAIL_TYPE: Final = "log-event"
SOURCE_PREFIX: Final = "task-workflow."
MAX_ENTRIES: Final = 10
MAX_CALL_BYTES: Final = 256_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_BYTES = 14


class EventBridgeSender:
    """Sends events to a bus; whoever listens there appends them to the journal."""

    def __init__(
        self,
        client: Any,
        *,
        event_bus_name: str,
        app: str | None = None,
        blobs: Blobs | None = None,
        retries: int = 3,
    ) -> None:
        """`client` is boto3's of EventBridge; `app` names the source where it is not the event's own."""
        if type(retries) is not int or retries < 0:
            raise ConfigurationError(f"retries: {retries!r} is not a whole number from 0 on", field="retries")
        self._client = client
        self._bus = event_bus_name
        self._app = app
        self._overflow = Overflow(blobs)
        self._retries = retries

    def append(self, events: Sequence[JournalEvent]) -> list[AppendResult]:
        """Hand each event to the bus. One that is refused, or that the bus does not take, fails alone."""
        entries = [self._entry(event) for event in events]
        ready = [entry for entry in entries if isinstance(entry, Sent)]
        sent = iter(deliver(ready, self._put, most=MAX_ENTRIES, most_bytes=MAX_CALL_BYTES, attempts=self._retries + 1))
        return [
            _result(event, next(sent) if isinstance(entry, Sent) else entry)
            for event, entry in zip(events, entries, strict=True)
        ]

    def _entry(self, event: JournalEvent) -> Sent[dict[str, Any]] | PostroadError:
        try:
            packed = self._overflow.pack(checked_entry(event))
            self._overflow.store(packed)
        except PostroadError as error:
            return error
        detail = sendable(msgspec.json.encode(packed.event.to_item()))
        source = SOURCE_PREFIX + (self._app or event.app)
        content = {
            "Source": source,
            "DetailType": DETAIL_TYPE,
            "Detail": detail.decode(),
            "Time": _EPOCH + timedelta(milliseconds=event.timestamp),
            "EventBusName": self._bus,
        }
        return Sent(content, size=len(detail) + len(source) + len(DETAIL_TYPE) + _TIME_BYTES)

    def _put(self, contents: list[dict[str, Any]]) -> list[bool | Again]:
        with translated(f"sending to EventBridge bus {self._bus!r}"):
            answer = self._client.put_events(Entries=contents)
        if not answer["FailedEntryCount"]:
            return [True] * len(contents)
        return [self._outcome(entry) for entry in answer["Entries"]]

    def _outcome(self, entry: Mapping[str, Any]) -> bool | Again:
        if not entry.get("ErrorCode"):
            return True
        why = f"{entry['ErrorCode']}: {entry.get('ErrorMessage', '')}"
        return Again(Unavailable(f"sending to EventBridge bus {self._bus!r}: {why}"))


def _result(event: JournalEvent, outcome: bool | PostroadError) -> AppendResult:
    if isinstance(outcome, PostroadError):
        return AppendResult(event_id=event.event_id, ok=False, error=outcome)
    return AppendResult(event_id=event.event_id, ok=True)


_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def event_of_detail(detail: object) -> JournalEvent:
    """The event that an item claims to be, or `InvalidEvent` when anything in it is not what follows from it."""
    if not isinstance(detail, dict):
        raise InvalidEvent("detail: is not an object", field="detail")
    _check_attributes(detail)
    event = JournalEvent.from_item(detail)
    check_event(event, packed=True)
    _check_keys(event, detail)
    if OVERFLOW in event.properties:
        _check_pointer(event)
    if (size := len(msgspec.json.encode(detail))) > MAX_ITEM_BYTES:
        raise EventTooLarge(f"detail: {size:,} bytes of JSON are above {MAX_ITEM_BYTES:,}", field="detail")
    return event


def _check_attributes(detail: Mapping[str, Any]) -> None:
    for name in detail:
        if name not in ATTRIBUTES:
            raise InvalidEvent(f"{name}: is not the sender's to set", field=str(name), remedy="Leave it out.")
    for name in ATTRIBUTES:
        if name not in detail:
            raise InvalidEvent(f"{name}: is missing", field=name)


def _check_keys(event: JournalEvent, detail: Mapping[str, Any]) -> None:
    for name, value in keys_of(event).items():
        if detail[name] != value:
            raise InvalidEvent(
                f"{name}: is not the key that follows from the event's fields",
                field=name,
                remedy="Send what JournalEvent.to_item() returns, unchanged.",
            )


def _check_pointer(event: JournalEvent) -> None:
    where = f"properties.{OVERFLOW}"
    try:
        pointer = checked_pointer(event, None)
    except OverflowMismatch as error:
        raise InvalidEvent(f"{where}: {error.message}", field=where) from None
    if _SHA256.fullmatch(pointer.sha256) is None or pointer.size < 0:
        raise InvalidEvent(f"{where}: is not the hash and size of a blob", field=where)


class RelayedJournal:
    """Appends go the long way; an event is seen by reads once it has arrived."""

    def __init__(self, journal: Journal, sender: Appends) -> None:
        self._journal = journal
        self._sender = sender

    def init(self) -> None:
        """Make the storage where it is missing, or say how it differs from what is needed."""
        self._journal.init()

    def append(self, events: Sequence[JournalEvent]) -> list[AppendResult]:
        """Hand each event to the sender."""
        return self._sender.append(events)

    @property
    def keeps_days(self) -> int | None:
        """After how many days somebody has to remove an event, where the events arrive; None: nobody has to."""
        return self._journal.keeps_days if isinstance(self._journal, Removes) else None

    def remove(self, events: Sequence[JournalEvent]) -> None:
        """Forget these events where they arrived."""
        if not isinstance(self._journal, Removes):
            raise NotSupported("this journal cannot forget events")
        self._journal.remove(events)

    def follow(self, tenant: str, event_types: Collection[str], position: str | None) -> Followed:
        """Return the next events of these types behind the position, as they arrive."""
        if not isinstance(self._journal, Follows):
            raise NotSupported("this journal cannot be followed")
        return self._journal.follow(tenant, event_types, position)

    def query(self, index: str, **asked: Any) -> Page:
        """A page of one index of what has arrived."""
        return self._journal.query(index, **asked)

    def latest(self, tenant: str, entity_type: str, entity_id: str) -> JournalEvent | None:
        """The last event of an entity that has arrived, or None."""
        return self._journal.latest(tenant, entity_type, entity_id)
