"""Bodies of notifications, read strictly: no NaN, no key given twice, nothing behind the end, no broken text."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from postroad.errors import InvalidMessage, InvalidNotification
from postroad.events.strict import MAX_BYTES, checked_bytes

_SHOWN = 200


def read_object(body: str | bytes) -> dict[str, Any]:
    """The JSON object that the body holds, or InvalidNotification."""
    try:
        data = checked_bytes(body, MAX_BYTES)
        found = msgspec.json.decode(data)
        # msgspec checks everything but repeated keys.
        json.loads(data, object_pairs_hook=_unrepeated)
    except InvalidNotification:
        raise
    except (msgspec.MsgspecError, InvalidMessage, ValueError, RecursionError) as error:
        raise InvalidNotification(f"the notification is not valid JSON: {str(error)[:_SHOWN]}") from error
    if not isinstance(found, dict):
        raise InvalidNotification("the notification is not a JSON object")
    return found


def member(document: dict[str, Any], name: str) -> Any:
    """The member of the object, or InvalidNotification when it is missing."""
    if name not in document:
        raise InvalidNotification(f"{name}: is missing", field=name)
    return document[name]


def _unrepeated(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise InvalidNotification(f"the key {name[:80]!r} is given twice")
        seen.add(name)
