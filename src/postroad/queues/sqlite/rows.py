"""Rows of the message table in the words of the port."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_attributes = msgspec.json.Decoder(dict[str, str])
DAMAGED: Final = "what is stored is not what was sent"

COLUMNS: Final = "m.id, m.sent_us, m.grp, m.origin, m.group_name, m.body, m.attributes, m.checksum"


class Row(NamedTuple):
    """A message with what its lease says of it."""

    id: int
    sent_us: int
    grp: int | None
    origin: int | None
    group_name: str | None
    body: bytes
    attributes: str | None
    checksum: int
    receives: int
    first_us: int | None
    error: str | None

    @property
    def first_id(self) -> int:
        """The id it was first sent under."""
        return self.id if self.origin is None else self.origin


@lru_cache(maxsize=256)
def moment(us: int) -> datetime:
    """The time of a stored wall clock."""
    return _EPOCH + timedelta(microseconds=us)


def write_attributes(attributes: Mapping[str, str]) -> str | None:
    """Attributes as they are stored."""
    return msgspec.json.encode(attributes).decode() if attributes else None


def read_attributes(text: str | None) -> dict[str, str]:
    """Attributes as they were sent."""
    return {} if text is None else _attributes.decode(text)


def checksum(body: bytes, attributes: str | None) -> int:
    """What tells a changed body or attribute."""
    total = zlib.crc32(body)
    return total if attributes is None else zlib.crc32(attributes.encode(), total)


def is_damaged(row: Row) -> bool:
    """Whether body or attributes are not those that were sent."""
    return checksum(row.body, row.attributes) != row.checksum


def salvaged_attributes(text: str | None) -> dict[str, str]:
    """Attributes as they were sent, or what is left of them under one name."""
    try:
        return read_attributes(text)
    except msgspec.DecodeError:
        return {"Damaged": str(text)}
