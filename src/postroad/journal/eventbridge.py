"""Events on their way to the journal through EventBridge: the sender, and the check of what arrives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from postroad import errors
from postroad.arguments import check, whole_number
from postroad.blobs import Blobs
from postroad.connections import Again, Entry as Sent, deliver, translated
from postroad.errors import InvalidEvent, PostroadError
from postroad.events import sendable
from postroad.journal.event import ATTRIBUTES, OVERFLOW, JournalEvent, check_event
from postroad.journal.keys import keys_of
from postroad.journal.overflow import MAX_ITEM_BYTES, Overflow, checked_pointer
from postroad.journal.port import AppendResult, append_results, checked_entry

DETAIL_TYPE: Final = "log-event"
SOURCE_PREFIX: Final = "task-workflow."
MAX_ENTRIES: Final = 10
MAX_CALL_BYTES: Final = 256_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_BYTES = 14


class EventBridgeSender:
    """Sends events to an event bus, whose target appends them to the journal.

    Args:
        client: The EventBridge client of boto3.
        event_bus_name: The name or ARN of the bus.
        app: The app in the source `task-workflow.{app}`; by default the app of each event.
        blobs: Where properties of events above 200 KiB go; without blobs such an event is refused.
        retries: How often an event that the bus did not accept is sent again, from 0 on; 3 by default.

    Raises:
        ConfigurationError: `retries` is not a whole number from 0 on.

    Example:
        EventBridgeSender(boto3.client("events"), event_bus_name="events-prod").append(events)
    """

    def __init__(
        self,
        client: Any,
        *,
        event_bus_name: str,
        app: str | None = None,
        blobs: Blobs | None = None,
        retries: int = 3,
    ) -> None:
        check(retries, whole_number(0), "retries", errors.ConfigurationError)
        self._client = client
        self._bus = event_bus_name
        self._app = app
        self._overflow = Overflow(blobs)
        self._retries = retries

    def append(self, events: Sequence[JournalEvent]) -> list[AppendResult]:
        """Send each of `events` to the bus. An event that is refused does not affect the others."""
        entries = [self._entry(event) for event in events]
        ready = [entry for entry in entries if isinstance(entry, Sent)]
        sent = deliver(ready, self._put, most=MAX_ENTRIES, most_bytes=MAX_CALL_BYTES, attempts=self._retries + 1)
        return append_results(events, entries, sent)

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
        return Again(errors.Unavailable(f"sending to EventBridge bus {self._bus!r}: {why}"))


_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def event_of_detail(detail: object) -> JournalEvent:
    """Return the event of an item that arrived, or raise `InvalidEvent` if anything in it is inconsistent."""
    if not isinstance(detail, dict):
        raise InvalidEvent("detail: is not an object", field="detail")
    for name in detail:
        if name not in ATTRIBUTES:
            raise InvalidEvent(f"{name}: cannot be set by the sender", field=str(name), remedy="Leave it out.")
    for name in ATTRIBUTES:
        if name not in detail:
            raise InvalidEvent(f"{name}: is missing", field=name)
    event = JournalEvent.from_item(detail)
    check_event(event, packed=True)
    for name, value in keys_of(event).items():
        if detail[name] != value:
            raise InvalidEvent(
                f"{name}: is not the key that follows from the event's fields",
                field=name,
                remedy="Send what JournalEvent.to_item() returns, unchanged.",
            )
    if OVERFLOW in event.properties:
        where = f"properties.{OVERFLOW}"
        try:
            pointer = checked_pointer(event, None)
        except errors.OverflowMismatch as error:
            raise InvalidEvent(f"{where}: {error.message}", field=where) from None
        if _SHA256.fullmatch(pointer.sha256) is None or pointer.size < 0:
            raise InvalidEvent(f"{where}: is not the hash and size of a blob", field=where)
    if (size := len(msgspec.json.encode(detail))) > MAX_ITEM_BYTES:
        raise errors.EventTooLarge(f"detail: its JSON has {size:,} bytes, more than {MAX_ITEM_BYTES:,}", field="detail")
    return event
