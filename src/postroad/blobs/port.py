"""Blobs: bytes too large for a message, under keys that Postroad builds."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

MAX_BLOB_BYTES = 104_857_600


class BlobRef(msgspec.Struct, frozen=True):
    """Where the bytes are, and what they must be."""

    key: str
    size: int
    sha256: str


@runtime_checkable
class Blobs(Protocol):
    """A place for large bytes. Size and hash are checked on read."""

    @property
    def bucket(self) -> str:
        """The name of the place: the S3 bucket, or what stands for it."""
        ...

    def put(self, key: str, data: bytes) -> BlobRef:
        """Store the bytes durably; an existing key is overwritten."""
        ...

    def get(self, ref: BlobRef) -> bytes:
        """The bytes that were put, or `BlobNotFound`, or `StorageDamaged` when they are others."""
        ...

    def delete(self, ref: BlobRef) -> None:
        """Remove the bytes; deleting twice changes nothing."""
        ...

    def keep(self, ref: BlobRef) -> None:
        """Start the blob's time anew, as if it had just been put; `BlobNotFound` when it is gone."""
        ...

    def prune(self, prefix: str, *, older_than: float) -> int:
        """Remove blobs under `prefix` that were put or kept more than `older_than` seconds ago; how many."""
        ...
