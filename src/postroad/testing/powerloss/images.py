"""Images of what a disk may hold after a power cut: all that was synced, and any part of what was not."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from postroad.testing.powerloss.recording import FOLDER, Change, Names, Promise, Recording, Step, Sync, Truncate, Write

SECTOR: Final = 512
_SHARES: Final = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class Image:
    """The files after a power cut, and what the program had been told before it."""

    end: int
    """The number of steps before the cut."""
    fate: str
    """What became of the changes that were not synced."""
    files: dict[str, bytes | bytearray]
    folders: list[str]
    promised: frozenset[str]

    def write(self, folder: Path) -> Path:
        """Make the folder contain these files and nothing else, and return it."""
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("", *self.folders):
            (folder / name).mkdir()
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return folder


def images(steps: Sequence[Step], count: int, chance: random.Random, *, first: int = 0) -> Iterator[Image]:
    """Yield images of cuts behind random steps, from step `first` on, in the order of the steps."""
    disk = Disk()
    done = 0
    for end in sorted(chance.randint(first, len(steps)) for _ in range(count)):
        for step in steps[done:end]:
            disk.take(step)
        done = end
        yield disk.image(chance)


def image(recording: Recording, end: int, chance: random.Random) -> Image:
    """Return an image of a cut behind step `end`."""
    disk = Disk()
    for step in recording.steps[:end]:
        disk.take(step)
    return disk.image(chance)


class Disk:
    """A disk that is given one step after the other. What was synced is applied, all else waits."""

    def __init__(self) -> None:
        self._contents: dict[int, bytearray] = {}
        self._names: dict[str, int] = {}
        self._waiting: list[tuple[int, Change]] = []
        self._promised: set[str] = set()
        self._taken = 0

    def take(self, step: Step) -> None:
        if isinstance(step, Sync):
            waiting = []
            for number, change in self._waiting:
                if change.owner == step.owner and number < step.began:
                    _apply(change, self._contents, self._names)
                else:
                    waiting.append((number, change))
            self._waiting = waiting
        elif isinstance(step, Promise):
            self._promised.add(step.what)
        else:
            self._waiting.append((self._taken, step))
        self._taken += 1

    def image(self, chance: random.Random) -> Image:
        """Return what a power cut may leave now."""
        contents, names, copied = dict(self._contents), dict(self._names), set[int]()
        fate, left = survivors([change for _, change in self._waiting], chance)
        for change in left:
            if not isinstance(change, Names) and change.owner not in copied:
                copied.add(change.owner)
                contents[change.owner] = bytearray(contents.get(change.owner, b""))
            _apply(change, contents, names)
        found = {name: file for name, file in names.items() if _is_reached(name, names)}
        files = {name: contents.get(file, b"") for name, file in found.items() if file != FOLDER}
        folders = sorted(name for name, file in found.items() if file == FOLDER)
        return Image(self._taken, fate, files, folders, frozenset(self._promised))


def survivors(changes: Sequence[Change], chance: random.Random) -> tuple[str, Sequence[Change]]:
    """Choose which changes reach the disk although nothing was synced: a fate, and what is left."""
    fate = chance.choice(("dropped", "kept", "prefix", "subset", "torn"))
    if fate == "dropped":
        return fate, ()
    if fate == "kept":
        return fate, changes
    if fate in ("prefix", "torn"):
        changes = [part for change in changes for part in _sectors(change)]
    if fate == "prefix":
        return fate, changes[: chance.randint(0, len(changes))]
    share = chance.choice(_SHARES)
    return fate, [change for change in changes if chance.random() < share]


def _sectors(change: Change) -> Iterator[Change]:
    """Cut a write at each multiple of the size of a sector."""
    if not isinstance(change, Write):
        yield change
        return
    start = 0
    while start < len(change.data):
        end = start + SECTOR - (change.offset + start) % SECTOR
        yield Write(change.owner, change.offset + start, change.data[start:end])
        start = end


def _apply(change: Change, contents: dict[int, bytearray], names: dict[str, int]) -> None:
    if isinstance(change, Names):
        for name, file in change.files.items():
            if file is None:
                names.pop(name, None)
            else:
                names[name] = file
        return
    content = contents.setdefault(change.owner, bytearray())
    end = change.size if isinstance(change, Truncate) else change.offset
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if isinstance(change, Truncate):
        del content[change.size :]
    else:
        content[change.offset : change.offset + len(change.data)] = change.data


def _is_reached(name: str, names: dict[str, int]) -> bool:
    """Return whether every folder on the way to a name is there."""
    return all(names.get(str(folder)) == FOLDER for folder in list(PurePosixPath(name).parents)[:-1])
