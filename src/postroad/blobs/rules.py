"""What every place for blobs checks: the data before it is stored, and what comes back."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from msgspec import Meta

from postroad.blobs.port import MAX_BLOB_BYTES, BlobRef
from postroad.errors import BlobNotFound, InvalidInput, StorageDamaged

MAX_KEY_CHARACTERS = 400
# No name begins with a dot, so none means this folder or the one above.
_KEY = re.compile(r"[a-z0-9][a-z0-9_-]*(/[a-zA-Z0-9_:-][a-zA-Z0-9_.:=-]*)*")
_REMEDY = (
    "Use names joined by '/', such as 'overflow/20300101/0f3c', the first of them in lower case and none beginning "
    f"with a dot, {MAX_KEY_CHARACTERS} characters at most."
)


def check_key(key: object) -> str:
    """Return the key, or refuse one that Postroad would not have built."""
    fits = isinstance(key, str) and len(key) <= MAX_KEY_CHARACTERS and _KEY.fullmatch(key) is not None
    if not isinstance(key, str) or not fits:
        raise InvalidInput(
            f"key: {str(key)[:MAX_KEY_CHARACTERS]!r} is not the key of a blob", field="key", remedy=_REMEDY
        )
    return key


def check_prefix(prefix: object) -> str:
    """Return the prefix of keys, a key with '/' at its end, or refuse it."""
    if not isinstance(prefix, str) or not prefix.endswith("/"):
        raise InvalidInput(f"prefix: {prefix!r} does not end with '/'", field="prefix", remedy="Name a folder of keys.")
    check_key(prefix[:-1])
    return prefix


_SHA256 = re.compile(r"[0-9a-f]{64}")
Age = Annotated[float, Meta(ge=0, description="a number of seconds")]


def reference(key: str, data: bytes) -> BlobRef:
    """The reference under which these bytes are found again, or why they are refused."""
    check_key(key)
    if not isinstance(data, bytes):
        raise InvalidInput(f"data: {type(data).__name__} is not bytes", field="data")
    if len(data) > MAX_BLOB_BYTES:
        raise InvalidInput(
            f"data: {len(data)} bytes is above the limit of {MAX_BLOB_BYTES} for a blob",
            field="data",
            remedy="Split the data, or keep it in a store of its own and send its address.",
        )
    return BlobRef(key=key, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def check_reference(ref: BlobRef) -> BlobRef:
    """Return the reference, or refuse one that no `put` can have made."""
    if not isinstance(ref, BlobRef):
        raise InvalidInput(
            f"ref: {type(ref).__name__} is not a BlobRef", field="ref", remedy="Give what put() returned, not the key."
        )
    check_key(ref.key)
    if not _is_size(ref.size):
        raise InvalidInput(f"size: {ref.size!r} is not a whole number from 0 to {MAX_BLOB_BYTES}", field="size")
    if not _is_hash(ref.sha256):
        raise InvalidInput("sha256: is not 64 lower-case hexadecimal digits", field="sha256")
    return ref


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_BLOB_BYTES


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def check_size(ref: BlobRef, size: int) -> None:
    """Refuse bytes of another length, before they are read."""
    if size != ref.size:
        raise StorageDamaged(f"blob {ref.key!r} has {size} bytes where {ref.size} were put")


def check_data(ref: BlobRef, data: bytes) -> bytes:
    """Return the bytes when they are those that were put."""
    check_size(ref, len(data))
    if hashlib.sha256(data).hexdigest() != ref.sha256:
        raise StorageDamaged(f"blob {ref.key!r} does not hold the bytes that were put")
    return data


def missing(key: str) -> BlobNotFound:
    """The error for a blob that is not there."""
    return BlobNotFound(f"there is no blob {key!r}")
