"""The function behind EventBridge that saves events. It computes their keys itself and trusts none from a sender."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from postroad.clock import SYSTEM_CLOCK
from postroad.connections import AwsConnection
from postroad.errors import ConfigurationError, InvalidEvent, PostroadError
from postroad.journal import DynamoRecords, Entry, JournalEvent, event_of_detail
from postroad.lambdas import failures
from postroad.settings import allowed_tenants, aws_place, events_table, events_ttl_days
from postroad.telemetry import get_logger


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Save one EventBridge event, or those in the records of a queue; return the records that failed."""
    if "Records" not in event:
        return {"eventId": str(_save(event).event_id)}
    return failures(event["Records"], _is_saved)


def _is_saved(record: Mapping[str, Any]) -> bool:
    try:
        _save(_parsed(record.get("body")))
    except PostroadError as error:
        get_logger("journal").warning(
            "journal_event_refused", message_id=record["messageId"], error=type(error).__name__, field=error.field
        )
        return False
    return True


def _parsed(body: object) -> Any:
    try:
        return json.loads(str(body))
    except (ValueError, RecursionError):
        raise InvalidEvent("body: is not JSON", field="body") from None


def _save(event: Any) -> JournalEvent:
    if not isinstance(event, Mapping) or "detail" not in event:
        raise InvalidEvent("detail: is missing", field="detail", remedy="Send what EventBridge delivers.")
    found = event_of_detail(event["detail"])
    allowed = allowed_tenants()
    if allowed is not None and found.tenant_id not in allowed:
        raise InvalidEvent(f"tenantId: {found.tenant_id!r} is not allowed here", field="tenantId")
    table = events_table()
    if table is None:
        raise ConfigurationError("EVENTS_TABLE: is not set", field="EVENTS_TABLE", remedy="Name the events table.")
    now = SYSTEM_CLOCK.now().timestamp()
    days = events_ttl_days()
    ttl = None if days is None else int(now) + days * 86_400
    (outcome,) = _records(table, aws_place()).add([Entry.of(found)], int(now * 1000), ttl)
    if isinstance(outcome, PostroadError):
        raise outcome
    return found


@functools.lru_cache(maxsize=4)
def _records(table: str, place: tuple[str, str]) -> DynamoRecords:
    """Return the table, opened once while the function stays warm."""
    return DynamoRecords(AwsConnection(place[0] or None), table)
