"""Events on their way to the table: through EventBridge, whose function saves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from postroad.blobs import Blobs
from postroad.connections.aws_errors import translated
from postroad.connections.batches import Again, deliver
from postroad.connections.batches import Entry as Sent
from postroad.errors import ConfigurationError, PostroadError, Unavailable
from postroad.events.strict import sendable
from postroad.journal.event import JournalEvent
from postroad.journal.overflow import Overflow
from postroad.journal.port import AppendResult
from postroad.journal.records import checked_entry

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
