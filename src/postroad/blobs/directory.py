"""Blobs in a directory: one file each, whole or absent, readable by the owner only.

Folders are held open by descriptor, so that no symlink put in their place can lead a write elsewhere.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from postroad.arguments import check
from postroad.blobs import port
from postroad.blobs.port import BlobRef
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import BlobNotFound, ConfigurationError, StorageDamaged, StorageFull, Unavailable

# No key contains a '+', so that a file never has the name of a folder of other keys.
_SUFFIX = "+blob"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PUT_ATTEMPTS = 5
_MAX_NAME = 200


class DirectoryBlobs:
    """Blobs as files below one directory.

    Args:
        path: The directory; it is created if it does not exist.
        clock: The clock that dates the blobs.
        read_only: Do not create the directory.
    """

    bucket = "directory"

    def __init__(self, path: str | Path, clock: Clock = SYSTEM_CLOCK, *, read_only: bool = False) -> None:
        self.path = Path(path)
        self._clock = clock
        self._closed = False
        missing = [each for each in (self.path, *self.path.parents) if not each.is_dir()]
        self._above = [each.parent for each in missing] or [self.path.parent]
        """The folders that hold the name of the directory, and those of the folders that were made for it."""
        self._synced: set[str] = set()
        """The folders whose names this process has brought to the disk; others may have made them only just now."""
        if not read_only:
            with _translated(str(self.path)):
                if not self.path.is_dir():
                    self.path.mkdir(parents=True, exist_ok=True)
                    self.path.chmod(0o700)

    def put(self, key: str, data: bytes) -> BlobRef:
        ref = port.reference(key, data)
        names, name = _place(key)
        with _translated(key):
            for _ in range(_PUT_ATTEMPTS):
                # Pruning may remove the empty folder before the file is written.
                with suppress(FileNotFoundError), self._folder(names, make=True) as folder:
                    _write(folder, name, data, at_ns=self._now_ns())
                    return ref
        raise Unavailable(f"blob {key!r}: its folder vanished {_PUT_ATTEMPTS} times while it was written")

    def get(self, ref: BlobRef) -> bytes:
        port.check_reference(ref)
        with self._file(ref) as file:
            port.check_size(ref, os.fstat(file).st_size)
            with open(file, "rb", closefd=False) as reader:
                return port.check_data(ref, reader.read(ref.size))

    def delete(self, ref: BlobRef) -> None:
        port.check_reference(ref)
        names, name = _place(ref.key)
        with suppress(BlobNotFound), _translated(ref.key), self._folder(names) as folder:
            os.unlink(name, dir_fd=folder)

    def keep(self, ref: BlobRef) -> None:
        port.check_reference(ref)
        with self._file(ref) as file:
            os.utime(file, ns=(self._now_ns(), self._now_ns()))

    def prune(self, prefix: str, *, older_than: float) -> int:
        check(prefix, port.Prefix, "prefix")
        check(older_than, port.Age, "older_than")
        names = [_short(name) for name in prefix[:-1].split("/")]
        limit_ns = self._now_ns() - int(older_than * 1e9)
        try:
            with _translated(prefix), self._folder(names) as folder:
                return _prune(folder, limit_ns)
        except BlobNotFound:
            return 0

    def close(self) -> None:
        """Refuse every use of the blobs from now on."""
        self._closed = True

    @contextmanager
    def _folder(self, names: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """Yield the descriptor of a folder; with `make`, create missing ones, readable by the owner only."""
        if self._closed:
            raise ConfigurationError(f"{self.path}: this backend is closed; open a new one with connect()")
        folder = os.open(self.path, _FOLDER)
        try:
            if make:
                self._once("", self._sync_above)
            for depth, name in enumerate(names, 1):
                inner = _enter(folder, name, make=make)
                if make:
                    self._once("/".join(names[:depth]), partial(os.fsync, folder))
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _once(self, folder: str, sync: Callable[[], None]) -> None:
        if folder not in self._synced:
            sync()
            self._synced.add(folder)

    def _sync_above(self) -> None:
        for path in self._above:
            folder = os.open(path, _FOLDER)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

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


def _write(folder: int, name: str, data: bytes, *, at_ns: int) -> None:
    """Write a file under another name and rename it, so that a crash leaves the old one or the new one."""
    draft = f".{uuid.uuid4().hex}"
    descriptor = os.open(draft, _NEW, 0o600, dir_fd=folder)
    try:
        try:
            os.fchmod(descriptor, 0o600)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.utime(descriptor, ns=(at_ns, at_ns))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
        raise
    os.fsync(folder)


def _enter(folder: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
        os.chmod(name, 0o700, dir_fd=folder)
        os.fsync(folder)
    return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)


def _place(key: str) -> tuple[list[str], str]:
    *names, last = (_short(name) for name in key.split("/"))
    return names, last + _SUFFIX


def _short(name: str) -> str:
    """Return the name or, if it is too long for a file system, its beginning and its hash."""
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 65]}+{hashlib.sha256(name.encode()).hexdigest()}"


def _prune(folder: int, limit_ns: int) -> int:
    """Remove old files here and below, those of crashed writers included, and folders that are empty then."""
    removed = 0
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        with suppress(FileNotFoundError):
            if entry.is_dir(follow_symlinks=False):
                inner = os.open(entry.name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                try:
                    removed += _prune(inner, limit_ns)
                finally:
                    os.close(inner)
                with suppress(OSError):
                    os.rmdir(entry.name, dir_fd=folder)
            elif entry.stat(follow_symlinks=False).st_mtime_ns < limit_ns:
                os.unlink(entry.name, dir_fd=folder)
                removed += entry.name.endswith(_SUFFIX)
    return removed


@contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise port.missing(key) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"blob {key!r}: {error.strerror}") from error
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
            raise StorageDamaged(
                f"blob {key!r}: a symlink or something else that Postroad did not write is in its place",
                remedy="Remove it from the blobs' directory; only Postroad may write there.",
            ) from error
        remedy = "Check the directory's owner and permissions."
        raise Unavailable(f"blob {key!r}: {error.strerror}", remedy=remedy) from error
