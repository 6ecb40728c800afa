"""A recording of everything that a program does to the files below one folder, in order.

SQLite's files are seen through a VFS, all others through the functions of `os`. A file is a number, so that a name can
be given to another file, and a change of a name belongs to the folder that holds it, as on a disk.
"""

from __future__ import annotations

import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import apsw
import msgspec

from postroad.engine import disk

FOLDER: Final = 0
"""The number that stands for a folder where others have that of a file."""
Synchronous = Literal["FULL", "NORMAL", "OFF"]
_BASE: Final = "unix"
_SYNCS_ITS_FOLDER: Final = (
    apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
)  # SQLite syncs the folder of such a file together with its first sync.


class Write(msgspec.Struct, frozen=True, tag=True):
    """A file got these bytes."""

    owner: int
    offset: int
    data: bytes


class Truncate(msgspec.Struct, frozen=True, tag=True):
    """A file was cut to a length."""

    owner: int
    size: int


class Names(msgspec.Struct, frozen=True, tag=True):
    """Names in a folder were given to files, or removed (None), all at once."""

    owner: str
    files: dict[str, int | None]


class Sync(msgspec.Struct, frozen=True, tag=True):
    """All that a file or folder got before step `began` is on the disk."""

    owner: int | str
    began: int


class Promise(msgspec.Struct, frozen=True, tag=True):
    """The program was told that this is done."""

    what: str


Change = Write | Truncate | Names
Step = Write | Truncate | Names | Sync | Promise


class Recording:
    """What happened below one folder; `recorded` fills it. Without `syncs`, nothing reaches the disk for certain."""

    def __init__(self, root: Path, *, syncs: bool = True) -> None:
        self.steps: list[Step] = []
        self._root, self._syncs = os.path.realpath(root), syncs
        self.changing = threading.RLock()
        """Held while a name changes and while a file is opened: no step of others comes between deed and record."""
        self._numbers = itertools.count(FOLDER + 1)
        self._names: dict[str, int] = {"": FOLDER}
        self._open: dict[int, tuple[str, int]] = {}
        """The name and number of the file or folder behind each descriptor."""

    def add(self, step: Step) -> None:
        with self.changing:
            self.steps.append(step)

    def place(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return the name of a path below the folder; None for another one."""
        if dir_fd is not None:
            folder = self._open.get(dir_fd)
            return None if folder is None else str(Path(folder[0], os.fsdecode(path)))
        absolute = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - a Path would take no bytes
        if absolute == self._root:
            return ""
        return absolute[len(self._root) + 1 :] if absolute.startswith(f"{self._root}/") else None

    def file(self, name: str) -> int:
        """Return the number of the file or folder of this name, a new one if the name is new."""
        with self.changing:
            if name not in self._names:
                self._names[name] = next(self._numbers)
                self.steps.append(Names(_folder(name), {name: self._names[name]}))
            return self._names[name]

    def name(self, files: dict[str, int | None]) -> None:
        """Record that these names, all in one folder, mean other files now."""
        with self.changing:
            for name, file in files.items():
                if file is None:
                    self._names.pop(name, None)
                else:
                    self._names[name] = file
            self.steps.append(Names(_folder(next(iter(files))), files))

    def opened(self, descriptor: int, name: str) -> None:
        """Remember what a descriptor is open for."""
        self._open[descriptor] = name, FOLDER if stat.S_ISDIR(os.fstat(descriptor).st_mode) else self.file(name)

    def closed(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)

    def wrote(self, descriptor: int, data: bytes) -> None:
        """Record a write that ends at the position of its descriptor."""
        if descriptor in self._open:
            offset = os.lseek(descriptor, 0, os.SEEK_CUR) - len(data)
            self.add(Write(self._open[descriptor][1], offset, data))

    def sync_descriptor(self, descriptor: int, sync: Callable[[], object]) -> None:
        """Sync a file or folder and record it."""
        name, file = self._open.get(descriptor, ("", None))
        self.sync([] if file is None else [file or name], sync)

    def sync(self, owners: Sequence[int | str], sync: Callable[[], object]) -> None:
        """Sync, and record that it covers what these files and folders got before it began."""
        began = len(self.steps)
        sync()
        for owner in owners if self._syncs else ():
            self.add(Sync(owner, began))


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


@contextmanager
def recorded(root: Path, synchronous: Synchronous = "FULL") -> Iterator[Recording]:
    """Record what this process does below a folder during a block.

    Args:
        root: The folder, which is empty.
        synchronous: FULL for what the engine does; NORMAL to leave out the sync of the log behind each commit, and OFF
            to leave out all syncs.
    """
    recording = Recording(root, syncs=synchronous != "OFF")
    to_disk = disk.to_disk
    with ExitStack() as undone:
        sync = recording.sync_descriptor if synchronous == "FULL" else lambda log, sync: None
        _replace(undone, disk, "to_disk", lambda log: sync(log, partial(to_disk, log)))
        calls = _Calls(recording)
        for name in _CALLS:
            _replace(undone, os, name, getattr(calls, name))
        vfs = _Disk(recording)
        undone.callback(vfs.unregister)
        undone.callback(apsw.set_default_vfs, _BASE)
        yield recording


def _replace(undone: ExitStack, owner: object, name: str, by: object) -> None:
    undone.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, by)


class _Calls:
    """The functions of `os` that change files, as they are during a recording. They record what succeeded."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._os = {name: getattr(os, name) for name in _CALLS}

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with self._recording.changing:
            descriptor: int = self._os["open"](path, flags, mode, dir_fd=dir_fd)
            if (name := self._recording.place(path, dir_fd)) is not None:
                self._recording.opened(descriptor, name)
        return descriptor

    def close(self, descriptor: int) -> None:
        self._recording.closed(descriptor)
        self._os["close"](descriptor)

    def write(self, descriptor: int, data: Any) -> int:
        written: int = self._os["write"](descriptor, data)
        self._recording.wrote(descriptor, bytes(data[:written]))
        return written

    def fsync(self, descriptor: Any) -> None:
        self._recording.sync_descriptor(descriptor, partial(self._os["fsync"], descriptor))

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with self._recording.changing:
            self._os["mkdir"](path, mode, dir_fd=dir_fd)
            self._name(FOLDER, path, dir_fd)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._recording.changing:
            self._os["unlink"](path, dir_fd=dir_fd)
            self._name(None, path, dir_fd)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._recording.changing:
            self._os["rmdir"](path, dir_fd=dir_fd)
            self._name(None, path, dir_fd)

    def link(self, source: Any, target: Any, **given: Any) -> None:
        with self._recording.changing:
            self._os["link"](source, target, **given)
            old = self._recording.place(source)
            if old is not None:
                self._name(self._recording.file(old), target, None)

    def rename(self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        with self._recording.changing:
            self._os["rename"](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            old, new = self._recording.place(source, src_dir_fd), self._recording.place(target, dst_dir_fd)
            if old is not None and new is not None:
                self._recording.name({new: self._recording.file(old), old: None})

    def _name(self, file: int | None, path: Any, dir_fd: int | None) -> None:
        name = self._recording.place(path, dir_fd)
        if name is not None:
            self._recording.name({name: file})


_CALLS: Final = ("open", "close", "write", "fsync", "mkdir", "unlink", "rmdir", "link", "rename")


class _Disk(apsw.VFS):
    """Where SQLite opens its files during a recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        super().__init__("postroad-recording", base=_BASE, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        place = None if path is None else self._recording.place(path)
        return apsw.VFSFile(_BASE, name, flags) if place is None else _File(self._recording, place, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        place = self._recording.place(filename)
        delete = partial(super().xDelete, filename, syncdir)
        if place is None:
            delete()
            return
        with self._recording.changing:
            self._recording.name({place: None})
            self._recording.sync([_folder(place)] if syncdir else [], delete)


class _File(apsw.VFSFile):
    """A file of SQLite during a recording."""

    def __init__(self, recording: Recording, place: str, name: Any, flags: list[int]) -> None:
        with recording.changing:
            super().__init__(_BASE, name, flags)
            self._recording, self._number = recording, recording.file(place)
        is_new = flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & _SYNCS_ITS_FOLDER
        self._folders = [_folder(place)] if is_new else []

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._recording.add(Write(self._number, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._recording.add(Truncate(self._number, newsize))

    def xSync(self, flags: int) -> None:
        self._recording.sync([self._number, *self._folders], partial(super().xSync, flags))
        self._folders = []
