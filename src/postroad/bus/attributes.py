"""The attributes of a message: what routing and filters may look at without reading the body."""

from __future__ import annotations

import re

from postroad.events import Envelope

REPLY_TO = "ReplyTo"
# What SQS allows in text.
_ALLOWED = re.compile("[\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")


def attributes_of(envelope: Envelope, *, reply_to: str | None = None) -> dict[str, str]:
    """The attributes that say something; what an attribute cannot carry stays in the body alone."""
    told = {
        "EventType": envelope.event_type,
        "PublisherId": envelope.publisher_id,
        "CreatedAt": envelope.created_at.isoformat(),
        "SessionId": envelope.session_id,
        REPLY_TO: reply_to,
        "TraceParent": envelope.traceparent,
    }
    return {name: value for name, value in told.items() if value and _ALLOWED.fullmatch(value)}
