"""`postroad verify powerloss`: record a writer, build images of power cuts, open each, and look for what is missing."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from postroad.arguments import check, whole_number
from postroad.blobs import DirectoryBlobs
from postroad.engine import Engine
from postroad.errors import PostroadError, QueueNotFound
from postroad.queues import ATTRIBUTE, OverflowingQueue, SQLiteQueues
from postroad.testing.powerloss import writer
from postroad.testing.powerloss.images import Image, images
from postroad.testing.powerloss.recording import Promise, Step, Synchronous

MOST_IMAGES: Final = 10_000_000
_PAGE: Final = 1_000
_TAIL: Final = 2_000


class PowerLoss(msgspec.Struct, frozen=True, kw_only=True):
    """What the images of one recording showed."""

    synchronous: str
    images: int
    """How many power cuts were tried."""
    commits: int
    """How many sends were acknowledged in the recording."""
    lost: int
    """How many acknowledged messages were missing, in all images together."""
    corrupt: int
    """In how many images the file could not be opened, failed the integrity check or held a body that nobody sent."""
    max_lost: int
    """The most messages that were missing in one image."""
    seed: int
    verdict: Literal["ok", "violated"]


def verify_power_loss(
    count: int = 2_000,
    *,
    seed: int = 0,
    synchronous: Synchronous = "FULL",
    progress: Callable[[int], None] = lambda done: None,
) -> PowerLoss:
    """Record a writer in a process of its own, and look at `count` images of power cuts.

    Args:
        count: How many images are built.
        seed: Fixes the messages, the cuts and what is left of what was not synced; not how threads take turns.
        synchronous: FULL for the engine as it is. NORMAL and OFF leave out syncs and must lose messages: they show that
            the images would find a loss.
        progress: Called with the number of images so far.

    Raises:
        InvalidInput: `count` or `synchronous` is out of range.
        PostroadError: The writer failed.
    """
    check(count, whole_number(1, MOST_IMAGES), "images")
    check(synchronous, Annotated[Synchronous, Meta(description="FULL, NORMAL or OFF")], "synchronous")
    steps = record(seed, synchronous)
    lost, corrupt = inspect(steps, count, seed, progress)
    return PowerLoss(
        synchronous=synchronous,
        images=count,
        commits=sum(isinstance(step, Promise) and step.what.startswith("sent ") for step in steps),
        lost=sum(lost),
        corrupt=corrupt,
        max_lost=max(lost),
        seed=seed,
        verdict="violated" if any(lost) or corrupt else "ok",
    )


def record(seed: int, synchronous: Synchronous = "FULL") -> list[Step]:
    """Run the writer in a process of its own and return what it did."""
    with tempfile.TemporaryDirectory(prefix="postroad-powerloss-") as place:
        folder, out = Path(place, "written"), Path(place, "recording")
        folder.mkdir()
        command = [sys.executable, "-P", "-m", writer.__name__, str(folder), str(out), synchronous, str(seed)]
        ended = subprocess.run(command, capture_output=True, check=False, text=True)
        if ended.returncode:
            text = f"the writer failed: {ended.stderr[-_TAIL:]}"
            raise PostroadError(text, remedy="Please report it with this text.")
        return msgspec.msgpack.decode(out.read_bytes(), type=list[Step])


def inspect(
    steps: list[Step], count: int, seed: int, progress: Callable[[int], None] = lambda done: None
) -> tuple[list[int], int]:
    """Open `count` images; return how many messages are missing in each, and how many images are corrupt."""
    from postroad.wiring.sqlite import Scratch

    lost, corrupt = [], 0
    # An image is thrown away: it needs no disk.
    with closing(Scratch()) as scratch:
        for done, image in enumerate(images(steps, count, random.Random(seed)), 1):
            missing, is_whole = _look(image, scratch.path / "image", seed)
            lost.append(missing)
            corrupt += not is_whole
            progress(done)
    return lost, corrupt


def _look(image: Image, folder: Path, seed: int) -> tuple[int, bool]:
    """Write an image to a folder and open it; return how many messages are missing, and whether all else is whole."""
    try:
        intact, bodies = _stored(image.write(folder) / writer.FILE)
    except PostroadError:
        intact, bodies = False, {}
    sent, taken = (_numbers(image, what) for what in ("sent ", "taken "))
    strangers = [number for number, found in bodies.items() if found != writer.body(seed, number)]
    return len(sent - taken - bodies.keys()), intact and not strangers


def _numbers(image: Image, what: str) -> set[int]:
    return {int(each.removeprefix(what)) for each in image.promised if each.startswith(what)}


def _stored(path: Path) -> tuple[bool, dict[int, bytes]]:
    """Open a file; return whether it passes the integrity check, and the bodies of its messages by their numbers."""
    # Nothing of it must survive, so it needs neither syncs nor a reserve; it is opened and recovered like any other.
    engine, intact = Engine(path, durable=False), False
    try:
        intact = engine.read(lambda connection: connection.pragma("integrity_check")) == "ok"
        blobs = DirectoryBlobs(path.with_name(f"{path.name}.blobs"), read_only=True)
        queue = OverflowingQueue(SQLiteQueues(engine).queue(writer.QUEUE), blobs)
        # A message that still has the attribute is one whose blob is missing.
        bodies = [each.body for each in queue.peek(limit=_PAGE) if ATTRIBUTE not in each.attributes]
        return intact, {_number(body): body for body in bodies}
    except QueueNotFound:
        return intact, {}
    finally:
        engine.close()


def _number(body: bytes) -> int:
    number = body.split(b" ", 1)[0]
    return int(number) if number.isdigit() else -1
