"""Message ids and receipts of agents' queues, made out of numbers, and stored times."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

_LANE_BITS: Final = 34
_PLACE_BITS: Final = 60
_SALT_BITS: Final = 122 - _LANE_BITS - _PLACE_BITS
_FENCE_BITS: Final = 56
_RECEIPT = re.compile(r"(\d{1,18})-(\d{1,18})-(\d{1,18})")
_NOBODY: Final = -1


class Receipt(NamedTuple):
    """The proof of one receive: lane and turn find the lease, the fence is that of no other receive."""

    lane: int
    turn: int
    fence: int

    @property
    def text(self) -> str:
        return f"{self.lane}-{self.turn}-{self.fence}"


def new_fence() -> int:
    """A number that no other receive has."""
    return int.from_bytes(os.urandom(_FENCE_BITS // 8))


def read_receipt(text: object) -> Receipt:
    """The receipt; nobody's when it is not ours."""
    match = _RECEIPT.fullmatch(text) if isinstance(text, str) and text.isascii() else None
    return Receipt(_NOBODY, _NOBODY, _NOBODY) if match is None else Receipt(*map(int, match.groups()))


class MessageIds:
    """UUIDs (version 8) of a few bits that are the file's own, the lane and the place."""

    def __init__(self, salt: int) -> None:
        self._salt = salt & ((1 << _SALT_BITS) - 1)

    def text(self, lane: int, place: int) -> str:
        """The message id of a row."""
        bits = (self._salt << _LANE_BITS | lane) << _PLACE_BITS | place
        high, middle, low = bits >> 74, bits >> 62 & 0xFFF, bits & ((1 << 62) - 1)
        tail = f"{0b10 << 62 | low:016x}"
        head = f"{high:012x}"
        return f"{head[:8]}-{head[8:]}-8{middle:03x}-{tail[:4]}-{tail[4:]}"

    def place(self, lane: int, text: str) -> int | None:
        """The place of a message id of this lane; None when it is not one."""
        plain = text.replace("-", "")
        if len(plain) != 32 or not all(digit in "0123456789abcdef" for digit in plain):
            return None
        number = int(plain, 16)
        low = number & ((1 << 62) - 1)
        bits = (number >> 80) << 74 | (number >> 64 & 0xFFF) << 62 | low
        place = bits & ((1 << _PLACE_BITS) - 1)
        return place if self.text(lane, place) == text else None


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment(us: int) -> datetime:
    """The time of a stored wall clock; the end of time for one that is damaged."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def microseconds(at: datetime) -> int:
    """A time as it is stored."""
    return (at - _EPOCH) // timedelta(microseconds=1)
