"""Blobs in this process's memory, for tests and trials."""

from __future__ import annotations

from postroad.blobs.keys import check_prefix
from postroad.blobs.port import BlobRef
from postroad.blobs.rules import check_age, check_data, check_reference, missing, reference
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.connections.own_memory import OwnMemory


class MemoryBlobs:
    """Blobs that end with the process."""

    bucket = "memory"

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = OwnMemory()
        self._data: dict[str, bytes] = {}
        self._put_at: dict[str, float] = {}

    def put(self, key: str, data: bytes) -> BlobRef:
        """Store the bytes; an existing key is overwritten."""
        ref = reference(key, data)
        with self._lock:
            self._data[key] = data
            self._put_at[key] = self._clock.monotonic()
        return ref

    def get(self, ref: BlobRef) -> bytes:
        """The bytes that were put, or `BlobNotFound`, or `StorageDamaged` when they are others."""
        check_reference(ref)
        with self._lock:
            data = self._data.get(ref.key)
        if data is None:
            raise missing(ref.key)
        return check_data(ref, data)

    def delete(self, ref: BlobRef) -> None:
        """Remove the bytes; deleting twice changes nothing."""
        check_reference(ref)
        with self._lock:
            self._data.pop(ref.key, None)
            self._put_at.pop(ref.key, None)

    def keep(self, ref: BlobRef) -> None:
        """Start the blob's time anew, as if it had just been put."""
        check_reference(ref)
        with self._lock:
            if ref.key not in self._data:
                raise missing(ref.key)
            self._put_at[ref.key] = self._clock.monotonic()

    def prune(self, prefix: str, *, older_than: float) -> int:
        """Remove blobs under `prefix` that were put or kept more than `older_than` seconds ago; how many."""
        check_prefix(prefix)
        check_age(older_than)
        with self._lock:
            limit = self._clock.monotonic() - older_than
            old = [key for key, at in self._put_at.items() if key.startswith(prefix) and at < limit]
            for key in old:
                del self._data[key], self._put_at[key]
        return len(old)

    def close(self) -> None:
        """Refuse every use of the blobs from now on."""
        self._lock.close()
