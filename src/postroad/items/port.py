"""Items: small values under conditional writes, for leases, markers and counters, and the checks of every adapter.

A key is `tenant/rest`: the tenant comes first and the rest may hold anything printable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, Protocol, runtime_checkable

import msgspec

from postroad.arguments import check, whole_number
from postroad.errors import InvalidInput

MAX_REST_BYTES = 900
MAX_VALUE_BYTES = 262_144
MAX_SCAN = 1_000
_TENANT = re.compile(r"[A-Za-z0-9_.:-]{1,256}")
_REMEDY = (
    "Write 'tenant/rest': the tenant of 1 to 256 letters, digits, '_', '.', ':' or '-', "
    f"the rest of 1 to {MAX_REST_BYTES} bytes of printable text."
)


class Expect(Enum):
    """What must be there for a write to happen, besides a version number."""

    ABSENT = "absent"
    ANY = "any"


ABSENT: Final = Expect.ABSENT
ANY: Final = Expect.ANY

Expected = int | Expect | Literal["absent", "any"]
"""A version, or absence or anything, each as a constant or as a word."""


class Item(msgspec.Struct, frozen=True):
    """A stored value. `version` starts at 1 and grows by one with each write; after a delete it may start again."""

    key: str
    """Its key."""
    value: bytes
    """Its bytes."""
    version: int


class ItemResult(msgspec.Struct, frozen=True):
    """Whether the write happened, and the item as it is now; None if there is none."""

    ok: bool
    """Whether the write happened."""
    item: Item | None
    """The item as it is now."""


class ItemPage(msgspec.Struct, frozen=True):
    """Items in key order; `cursor` is None on the last page."""

    items: tuple[Item, ...]
    """The items."""
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsTraits:
    """What the items promise."""

    durable: bool
    """Whether a write that is ok survives a power cut."""
    joins_writes: bool
    """A write may share one commit with the caller's other writes (`backend.transaction()`)."""
    max_value_bytes: int
    """The size of the largest value."""


@runtime_checkable
class Items(Protocol):
    """Conditional writes on small values. A failed condition changes nothing and returns the current item."""

    @property
    def traits(self) -> ItemsTraits: ...

    def get(self, key: str) -> Item | None:
        """Return the item `key` as the last write left it."""
        ...

    def put(self, key: str, value: bytes, *, expect: Expected = ANY) -> ItemResult:
        """Write the value if the condition holds.

        Args:
            key: `tenant/rest`.
            value: At most 256 KiB.
            expect: The version that must be there, `ABSENT` for none, or `ANY`.
        """
        ...

    def delete(self, key: str, *, expect: Expected = ANY) -> ItemResult:
        """Remove the item `key` if the version that `expect` names is there; with `ANY` it is ok if there is none."""
        ...

    def scan(self, prefix: str, *, limit: int = 100, cursor: str | None = None) -> ItemPage:
        """Return up to `limit` items behind `cursor` whose key starts with `prefix`: a whole tenant, or longer."""
        ...


def check_key(key: object) -> None:
    if not _rest(key, "key"):
        raise InvalidInput(f"key: {key!r} names a tenant and nothing after it", field="key", remedy=_REMEDY)


def check_value(value: object) -> None:
    """Refuse a value that is not bytes or is too large."""
    if not isinstance(value, bytes):
        raise InvalidInput(f"value: {type(value).__name__} is not bytes", field="value")
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidInput(
            f"value: {len(value)} bytes is above the limit of {MAX_VALUE_BYTES}",
            field="value",
            remedy="Put large bytes into blobs and keep their reference here.",
        )


def check_expect(expect: object) -> int | Expect:
    """Return what is expected, or refuse it if it is neither a version nor `ABSENT` nor `ANY`."""
    if isinstance(expect, Expect) or expect in ("absent", "any"):
        return Expect(expect)
    if isinstance(expect, bool) or not isinstance(expect, int) or expect < 1:
        raise InvalidInput(f"expect: {expect!r} is neither a version from 1 on nor ABSENT nor ANY", field="expect")
    return expect


def check_scan(prefix: object, limit: object, cursor: object) -> None:
    """Refuse arguments of `scan` that are out of range."""
    _rest(prefix, "prefix")
    check(limit, whole_number(1, MAX_SCAN), "limit")
    if cursor is not None and (not isinstance(cursor, str) or not cursor.startswith(str(prefix))):
        raise InvalidInput("cursor: is not of a scan with this prefix", field="cursor")


def holds(expect: int | Expect, version: int | None) -> bool:
    """Return whether the version that is there, None for absence, is what the write expects."""
    return expect is ANY or version == (None if expect is ABSENT else expect)


def _rest(text: object, field: str) -> str:
    if not isinstance(text, str) or "/" not in text:
        raise InvalidInput(f"{field}: {text!r} has no tenant before a '/'", field=field, remedy=_REMEDY)
    tenant, _, rest = text.partition("/")
    if _TENANT.fullmatch(tenant) is None:
        raise InvalidInput(f"{field}: {tenant!r} is not the name of a tenant", field=field, remedy=_REMEDY)
    if not rest.isprintable() or len(rest.encode()) > MAX_REST_BYTES:
        raise InvalidInput(
            f"{field}: what follows {tenant + '/'!r} is too long or not printable", field=field, remedy=_REMEDY
        )
    return rest
