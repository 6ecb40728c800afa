"""Items: small values under conditional writes, for leases, markers and counters.

A key is `tenant/rest`: the tenant comes first and the rest may hold anything printable.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, Protocol, runtime_checkable

import msgspec


class Expect(Enum):
    """What must be there for a write to happen, besides a version number."""

    ABSENT = "absent"
    ANY = "any"


ABSENT: Final = Expect.ABSENT
ANY: Final = Expect.ANY

Expected = int | Expect | Literal["absent", "any"]
"""A version, absence or anything; the last two as constants or as words."""


class Item(msgspec.Struct, frozen=True):
    """A stored value. `version` is 1 at first and grows by one with each write; after a delete it may start again."""

    key: str
    value: bytes
    version: int


class ItemResult(msgspec.Struct, frozen=True):
    """Whether the write happened, and the item as it is now (None: there is none)."""

    ok: bool
    item: Item | None


class ItemPage(msgspec.Struct, frozen=True):
    """Items in key order; `cursor` is None on the last page."""

    items: tuple[Item, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsTraits:
    """What the items promise."""

    durable: bool
    joins_writes: bool
    """A write may share one commit with the caller's other writes (`backend.transaction()`)."""
    max_value_bytes: int


@runtime_checkable
class Items(Protocol):
    """Conditional writes on small values. A failed condition changes nothing and returns the current item."""

    @property
    def traits(self) -> ItemsTraits: ...

    def get(self, key: str) -> Item | None:
        """The item as the last write left it."""
        ...

    def put(self, key: str, value: bytes, *, expect: Expected = ANY) -> ItemResult:
        """Write the value if the expected version, absence or anything is there."""
        ...

    def delete(self, key: str, *, expect: Expected = ANY) -> ItemResult:
        """Remove the item if the expected version is there; ok with `ANY` also when there is none."""
        ...

    def scan(self, prefix: str, *, limit: int = 100, cursor: str | None = None) -> ItemPage:
        """Items whose key starts with `prefix` (which holds the whole tenant), in key order."""
        ...
