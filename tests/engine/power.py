"""A disk that remembers: every write and sync of a run, and what a power cut at any moment may leave of them."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from postroad.engine import disk

_SECTOR = 512


@dataclass(frozen=True)
class Write:
    """Bytes that a file got."""

    file: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class Truncate:
    """A file that got another length."""

    file: str
    size: int


@dataclass(frozen=True)
class Delete:
    """A file that is gone, on the disk too: SQLite syncs the directory."""

    file: str


@dataclass(frozen=True)
class Sync:
    """Everything that the file got before this place of the record is on the disk."""

    file: str
    began: int


@dataclass(frozen=True)
class Promise:
    """The program was told that this is done."""

    what: str


Step = Write | Truncate | Delete | Sync | Promise


class Record:
    """What happened, in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.steps: list[Step] = []

    def add(self, step: Step) -> None:
        """Note the step."""
        with self._lock:
            self.steps.append(step)

    def syncing(self, file: str, sync: Callable[[], object]) -> None:
        """Sync, and note that it covers what came before it began."""
        began = len(self.steps)
        sync()
        self.add(Sync(file, began))

    def image(self, end: int, chance: random.Random) -> dict[str, bytearray]:
        """The files after a power cut behind step `end`: what was not synced may be there, torn, or not."""
        synced: dict[str, int] = {}
        for step in self.steps[:end]:
            if isinstance(step, Sync):
                synced[step.file] = max(synced.get(step.file, 0), step.began)
        files: dict[str, bytearray] = {}
        for place, step in enumerate(self.steps[:end]):
            sure = isinstance(step, Write | Truncate) and place < synced.get(step.file, 0)
            if isinstance(step, Write):
                _apply(files.setdefault(step.file, bytearray()), step, None if sure else chance)
            elif isinstance(step, Truncate) and (sure or chance.random() < 0.5):
                content = files.setdefault(step.file, bytearray())
                del content[step.size :]
            elif isinstance(step, Delete):
                files.pop(step.file, None)
        return files

    def promised(self, end: int) -> set[str]:
        """What the program was told before the power cut."""
        return {step.what for step in self.steps[:end] if isinstance(step, Promise)}


def _apply(content: bytearray, write: Write, chance: random.Random | None) -> None:
    fate = 1.0 if chance is None else chance.choice((0.0, 0.5, 1.0))
    for start in range(0, len(write.data), _SECTOR):
        if chance is not None and chance.random() >= fate:
            continue
        part = write.data[start : start + _SECTOR]
        offset = write.offset + start
        if len(content) < offset + len(part):
            content.extend(bytes(offset + len(part) - len(content)))
        content[offset : offset + len(part)] = part


class _File(apsw.VFSFile):
    def __init__(self, record: Record, base: str, filename: Any, flags: list[int]) -> None:
        super().__init__(base, filename, flags)
        self._record = record
        name = filename.filename() if isinstance(filename, apsw.URIFilename) else filename
        self._name = Path(name or "temporary").name

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._record.add(Write(self._name, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._record.add(Truncate(self._name, newsize))

    def xSync(self, flags: int) -> None:
        self._record.syncing(self._name, lambda: super(_File, self).xSync(flags))


class _Disk(apsw.VFS):
    def __init__(self, record: Record) -> None:
        self._record = record
        super().__init__("remembering", base="unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(self._record, "unix", name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._record.add(Delete(Path(filename).name))


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch, log_name: str) -> Iterator[Record]:
    """Let every file that is opened in the block be recorded."""
    record = Record()
    vfs = _Disk(record)
    monkeypatch.setattr(disk, "_to_disk", lambda descriptor: record.syncing(log_name, lambda: os.fdatasync(descriptor)))
    try:
        yield record
    finally:
        vfs.unregister()
        apsw.set_default_vfs("unix")
