"""Stored times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

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
