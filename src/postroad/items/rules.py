"""The limits of items and the condition of a write, the same on every adapter."""

from __future__ import annotations

import re

from postroad.errors import InvalidInput
from postroad.items.port import ABSENT, ANY, Expect

MAX_REST_BYTES = 900
MAX_VALUE_BYTES = 262_144
MAX_SCAN = 1_000
_TENANT = re.compile(r"[A-Za-z0-9_.:-]{1,256}")
_REMEDY = (
    "Write 'tenant/rest': the tenant of 1 to 256 letters, digits, '_', '.', ':' or '-', "
    f"the rest of 1 to {MAX_REST_BYTES} bytes of printable text."
)


def check_key(key: object) -> str:
    """Return the key, or refuse it."""
    _, rest = _parts(key, "key")
    if not rest:
        raise InvalidInput(f"key: {key!r} names a tenant and nothing of it", field="key", remedy=_REMEDY)
    return str(key)


def check_prefix(prefix: object) -> str:
    """Return the prefix, or refuse one that does not hold the whole tenant with its '/'."""
    _parts(prefix, "prefix")
    return str(prefix)


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
    """Return what is expected, or refuse what is neither a version nor `ABSENT` nor `ANY`."""
    if isinstance(expect, Expect) or expect in ("absent", "any"):
        return Expect(expect)
    if isinstance(expect, bool) or not isinstance(expect, int) or expect < 1:
        raise InvalidInput(f"expect: {expect!r} is neither a version from 1 on nor ABSENT nor ANY", field="expect")
    return expect


def check_scan(prefix: object, limit: object, cursor: object) -> None:
    """Refuse arguments of `scan` that are out of range."""
    start = check_prefix(prefix)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_SCAN:
        raise InvalidInput(f"limit: {limit!r} is not a whole number from 1 to {MAX_SCAN}", field="limit")
    if cursor is not None and (not isinstance(cursor, str) or not cursor.startswith(start)):
        raise InvalidInput("cursor: is not of a scan with this prefix", field="cursor")


def holds(expect: int | Expect, version: int | None) -> bool:
    """Whether the version that is there, None for absence, is what the write expects."""
    if expect is ANY:
        return True
    if expect is ABSENT:
        return version is None
    return version == expect


def split(key: str) -> tuple[str, str]:
    """The tenant and the rest of a key."""
    tenant, _, rest = key.partition("/")
    return tenant, rest


def _parts(text: object, field: str) -> tuple[str, str]:
    if not isinstance(text, str) or "/" not in text:
        raise InvalidInput(f"{field}: {text!r} has no tenant before a '/'", field=field, remedy=_REMEDY)
    tenant, rest = split(text)
    if _TENANT.fullmatch(tenant) is None:
        raise InvalidInput(f"{field}: {tenant!r} is not the name of a tenant", field=field, remedy=_REMEDY)
    if not rest.isprintable() or len(rest.encode()) > MAX_REST_BYTES:
        raise InvalidInput(
            f"{field}: what follows {tenant + '/'!r} is too long or not printable", field=field, remedy=_REMEDY
        )
    return tenant, rest
