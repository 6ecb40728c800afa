"""The names under which a push that is sent twice shows up once."""

from __future__ import annotations

import hashlib
import uuid
from typing import Final

_PUSHES: Final = uuid.uuid5(uuid.NAMESPACE_URL, "https://postroad.dev/push")


def collapse_id(push_id: str) -> str:
    """The name under which the provider and the device keep only the newest of several copies."""
    return hashlib.sha256(push_id.encode()).hexdigest()[:32]


def request_id(push_id: str, token: str) -> str:
    """The name of this push to this device, the same whenever it is sent."""
    return str(uuid.uuid5(_PUSHES, f"{push_id}\n{token}"))
