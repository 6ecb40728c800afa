"""Folders held open by descriptor, so that no symlink put in their place can lead a write elsewhere."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(root: Path, names: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """The descriptor of the folder `names` below `root`; missing ones are made, readable by the owner only."""
    folder = os.open(root, _FOLDER)
    try:
        for name in names:
            inner = _enter(folder, name, make=make)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def make_root(root: Path) -> None:
    """Make the outermost folder where it is missing, readable by the owner only."""
    if not root.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)


def write(folder: int, name: str, data: bytes, *, at_ns: int) -> None:
    """Put a whole file under `name`, so that a crash leaves the old one or the new one."""
    draft = f".{uuid.uuid4().hex}"
    descriptor = os.open(draft, _NEW, 0o600, dir_fd=folder)
    try:
        try:
            os.fchmod(descriptor, 0o600)
            _write_all(descriptor, data)
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


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
