"""Blobs: bytes too large for a message, under keys that Postroad builds, and the checks that every store makes."""

from __future__ import annotations

import hashlib
from typing import Annotated, Protocol, runtime_checkable

import msgspec
from msgspec import Meta

from postroad.arguments import check, text, whole_number
from postroad.errors import BlobNotFound, InvalidInput, StorageDamaged

MAX_BLOB_BYTES = 104_857_600
MAX_KEY_CHARACTERS = 400
# No name begins with a dot, so that none means this folder or the one above.
_NAMES = r"[a-z0-9][a-z0-9_-]*(/[a-zA-Z0-9_:-][a-zA-Z0-9_.:=-]*)*"
_Key = text(
    rf"(?=.{{1,{MAX_KEY_CHARACTERS}}}\Z){_NAMES}",
    "the key of a blob",
    remedy="Use names joined by '/', such as 'overflow/20300101/0f3c', the first of them in lower case and none "
    f"beginning with a dot, {MAX_KEY_CHARACTERS} characters at most.",
)
Prefix = text(f"{_NAMES}/", "the beginning of keys up to a '/'", remedy="Name a folder of keys, such as 'overflow/'.")
_SHA256 = text("[0-9a-f]{64}", "64 lower-case hexadecimal digits")
Age = Annotated[float, Meta(ge=0, description="a number of seconds")]


class BlobRef(msgspec.Struct, frozen=True):
    """Where the bytes are, and what they must be.

    Attributes:
        key: The name under which they are stored.
    """

    key: str
    size: int
    """In bytes."""
    sha256: str
    """64 lower-case hexadecimal digits."""


@runtime_checkable
class Blobs(Protocol):
    """A store for large bytes. Size and hash are checked on read."""

    @property
    def bucket(self) -> str:
        """Return the name of the S3 bucket, or of the kind of store that takes its place."""
        ...

    def put(self, key: str, data: bytes) -> BlobRef:
        """Store `data` durably under `key`; an existing key is overwritten."""
        ...

    def get(self, ref: BlobRef) -> bytes:
        """Return the bytes of `ref`; raise `BlobNotFound`, or `StorageDamaged` if they have changed."""
        ...

    def delete(self, ref: BlobRef) -> None:
        """Remove the bytes of `ref`; deleting twice changes nothing."""
        ...

    def keep(self, ref: BlobRef) -> None:
        """Make the blob `ref` as new as if it had just been put; raise `BlobNotFound` if it is gone."""
        ...

    def prune(self, prefix: str, *, older_than: float) -> int:
        """Remove blobs under `prefix` that were put or kept more than `older_than` seconds ago; return how many."""
        ...


def reference(key: str, data: bytes) -> BlobRef:
    """Return the reference of these bytes, or refuse them."""
    check(key, _Key, "key")
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
    """Return the reference, or refuse one that `put` cannot have returned."""
    if not isinstance(ref, BlobRef):
        raise InvalidInput(
            f"ref: {type(ref).__name__} is not a BlobRef", field="ref", remedy="Give what put() returned, not the key."
        )
    check(ref.key, _Key, "key")
    check(ref.size, whole_number(0, MAX_BLOB_BYTES), "size")
    check(ref.sha256, _SHA256, "sha256")
    return ref


def check_size(ref: BlobRef, size: int) -> None:
    """Refuse bytes of another length, before they are read."""
    if size != ref.size:
        raise StorageDamaged(f"blob {ref.key!r} has {size} bytes where {ref.size} were put")


def check_data(ref: BlobRef, data: bytes) -> bytes:
    """Return the bytes, or raise `StorageDamaged` if they are not those that were put."""
    check_size(ref, len(data))
    if hashlib.sha256(data).hexdigest() != ref.sha256:
        raise StorageDamaged(f"blob {ref.key!r} does not hold the bytes that were put")
    return data


def missing(key: str) -> BlobNotFound:
    return BlobNotFound(f"there is no blob {key!r}")
