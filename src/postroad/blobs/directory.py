"""Blobs in a directory: one file each, whole or absent, readable by the owner only."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from postroad.arguments import check
from postroad.blobs import folders
from postroad.blobs.port import BlobRef
from postroad.blobs.rules import Age, check_data, check_prefix, check_reference, check_size, missing, reference
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import BlobNotFound, ConfigurationError, PostroadError, StorageDamaged, StorageFull, Unavailable

# No key holds a '+', so a file never stands where a folder of other keys must be.
_SUFFIX = "+blob"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PUT_ATTEMPTS = 5
_MAX_NAME = 200


class DirectoryBlobs:
    """Blobs as files below one directory, which is made when missing, unless it is only to be read."""

    bucket = "directory"

    def __init__(self, path: str | Path, clock: Clock = SYSTEM_CLOCK, *, read_only: bool = False) -> None:
        self.path = Path(path)
        self._clock = clock
        self._closed = False
        if not read_only:
            with _translated(str(self.path)):
                folders.make_root(self.path)

    def put(self, key: str, data: bytes) -> BlobRef:
        """Store the bytes durably; an existing key is overwritten."""
        ref = reference(key, data)
        with _translated(key):
            for _ in range(_PUT_ATTEMPTS):
                # Pruning may remove a folder while it is empty, between our making it and our writing into it.
                with suppress(FileNotFoundError):
                    self._write(key, data)
                    return ref
        raise Unavailable(f"blob {key!r}: its folder vanished {_PUT_ATTEMPTS} times while it was written")

    def get(self, ref: BlobRef) -> bytes:
        """The bytes that were put, or `BlobNotFound`, or `StorageDamaged` when they are others."""
        check_reference(ref)
        with self._file(ref) as file:
            check_size(ref, os.fstat(file).st_size)
            with open(file, "rb", closefd=False) as reader:
                return check_data(ref, reader.read(ref.size))

    def delete(self, ref: BlobRef) -> None:
        """Remove the bytes; deleting twice changes nothing."""
        check_reference(ref)
        names, name = _place(ref.key)
        with suppress(BlobNotFound), _translated(ref.key), self._folder(names) as folder:
            os.unlink(name, dir_fd=folder)

    def keep(self, ref: BlobRef) -> None:
        """Start the blob's time anew, as if it had just been put."""
        check_reference(ref)
        with self._file(ref) as file:
            os.utime(file, ns=(self._now_ns(), self._now_ns()))

    def prune(self, prefix: str, *, older_than: float) -> int:
        """Remove blobs under `prefix` that were put or kept more than `older_than` seconds ago; how many."""
        check(older_than, Age, "older_than")
        names = [_short(name) for name in check_prefix(prefix)[:-1].split("/")]
        limit_ns = self._now_ns() - int(older_than * 1e9)
        try:
            with _translated(prefix), self._folder(names) as folder:
                return _prune(folder, limit_ns)
        except BlobNotFound:
            return 0

    def close(self) -> None:
        """Refuse every use of the blobs from now on."""
        self._closed = True

    def _folder(self, names: Sequence[str], *, make: bool = False) -> AbstractContextManager[int]:
        if self._closed:
            raise ConfigurationError(f"{self.path}: this backend is closed; open a new one with connect()")
        return folders.opened(self.path, names, make=make)

    def _write(self, key: str, data: bytes) -> None:
        names, name = _place(key)
        with self._folder(names, make=True) as folder:
            folders.write(folder, name, data, at_ns=self._now_ns())

    @contextmanager
    def _file(self, ref: BlobRef) -> Iterator[int]:
        names, name = _place(ref.key)
        with _translated(ref.key), self._folder(names) as folder:
            file = os.open(name, _READ, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise StorageDamaged(f"blob {ref.key!r} is not a plain file")
                yield file
            finally:
                os.close(file)

    def _now_ns(self) -> int:
        return int(self._clock.now().timestamp() * 1e9)


def _place(key: str) -> tuple[list[str], str]:
    *names, last = (_short(name) for name in key.split("/"))
    return names, last + _SUFFIX


def _short(name: str) -> str:
    """The name, or for one longer than file systems take its beginning and its hash."""
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 65]}+{hashlib.sha256(name.encode()).hexdigest()}"


def _prune(folder: int, limit_ns: int) -> int:
    """Remove old files here and below, drafts of crashed writers included, and folders that are empty then."""
    removed = 0
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        with suppress(FileNotFoundError):
            if entry.is_dir(follow_symlinks=False):
                removed += _prune_folder(folder, entry.name, limit_ns)
            elif entry.stat(follow_symlinks=False).st_mtime_ns < limit_ns:
                os.unlink(entry.name, dir_fd=folder)
                removed += entry.name.endswith(_SUFFIX)
    return removed


def _prune_folder(parent: int, name: str, limit_ns: int) -> int:
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        removed = _prune(inner, limit_ns)
    finally:
        os.close(inner)
    with suppress(OSError):
        os.rmdir(name, dir_fd=parent)
    return removed


@contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise missing(key) from error
    except OSError as error:
        raise _meaning(key, error) from error


def _meaning(key: str, error: OSError) -> PostroadError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"blob {key!r}: {error.strerror}")
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
        return StorageDamaged(
            f"blob {key!r}: a symlink or another foreign thing stands in its place",
            remedy="Remove it from the blobs' directory; nothing but Postroad writes there.",
        )
    return Unavailable(f"blob {key!r}: {error.strerror}", remedy="Check the directory's owner and permissions.")
