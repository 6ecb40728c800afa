"""Names that stay the same for the same push: whoever sends it again is recognised."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from postroad.errors import InvalidNotification
from postroad.notifications.checks import check_id

PUSH_ID: Final = "PushId"
"""The attribute that names a push on its way through the queue."""
_HEX: Final = 32


def event_id_of(user_id: str, message_id: str) -> UUID:
    """The id in the outbox of the push for one message."""
    return UUID(hex=_hash(f"{user_id}\n{message_id}".encode()))


def offline_push_id(user_id: str, message_id: str) -> str:
    """The id of the push for one message of one user."""
    return push_id_of_event(event_id_of(user_id, message_id))


def push_id_of_event(event_id: UUID) -> str:
    """The id of the push that the outbox holds under this id."""
    return f"offline:{event_id.hex}"


def push_id_of(body: bytes, attributes: Mapping[str, str]) -> str:
    """The id of a received push: the one it came with, else one made of its body."""
    given = attributes.get(PUSH_ID)
    try:
        check_id(given, PUSH_ID)
    except InvalidNotification:
        return f"body:{_hash(body)}"
    return str(given)


def token_hash(token: str) -> str:
    """What is kept of a device token where the token itself must not be."""
    return hashlib.sha256(token.encode()).hexdigest()


def user_hash(user_id: str) -> str:
    """What logs show of a user."""
    return _hash(user_id.encode())[:12]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_HEX]
