"""What keeps events of one key in order: the lane that a key stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_FIRST: Final = "transferId"


def lane_of(key: Mapping[str, str]) -> str:
    """The key's lane: its transferId if it has one, else its values in the order of their names, joined by '/'."""
    if (transfer := key.get(_FIRST)) is not None:
        return transfer
    return "/".join(key[name] for name in sorted(key))


def as_key(key: Mapping[str, str] | str) -> Mapping[str, str]:
    """The key as a mapping; text alone stands for a key of one value."""
    return {"key": key} if isinstance(key, str) else key
