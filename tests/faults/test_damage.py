"""Damaged files: an error that names the file, or what is there is unchanged; never another body than the one sent."""

from __future__ import annotations

import hashlib
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from postroad import OutgoingMessage, Queue, connect
from postroad.errors import PostroadError

MESSAGES = 120
WRITE = """
import os, sys
from postroad import OutgoingMessage, QueueSpec, connect
from tests.faults.test_damage import MESSAGES, body
backend = connect(sys.argv[1])
queue = backend.create_queue(QueueSpec("jobs"))
for number in range(MESSAGES):
    if number == MESSAGES // 2:
        # One half is in the file, the other in the log.
        backend.compact()
    queue.send([OutgoingMessage(body(number))])
os._exit(9)
"""
Damage = Callable[[Path, random.Random], None]


def body(number: int) -> str:
    """Return a body that proves itself; every thirtieth travels as a blob."""
    text = f"{number} " + "x" * (1_100_000 if number % 30 == 29 else 40 * (number % 17))
    return f"{hashlib.sha256(text.encode()).hexdigest()} {text}"


def is_unchanged(found: bytes) -> bool:
    """Return whether this is a body as it was sent."""
    digest, _, text = found.partition(b" ")
    return digest.decode() == hashlib.sha256(text).hexdigest()


def _flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    # Much of a page is empty: a bit there is no damage.
    at = chance.choice([at for at, byte in enumerate(data) if byte])
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _truncate(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))])


def _overwrite(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    at = chance.randrange(0, len(data), 512)
    data[at : at + 512] = chance.randbytes(512)
    path.write_bytes(data)


FILES = {"file": "p.db", "log": "p.db-wal", "blob": "p.db.blobs/**/*+blob"}
CASES = [
    pytest.param(FILES[file], damage, seed, id=f"{damage.__name__[1:]}-{file}-{seed}")
    for file, damage, count in (
        ("file", _flip, 16),
        ("file", _truncate, 8),
        ("file", _overwrite, 8),
        ("log", _flip, 8),
        ("log", _truncate, 6),
        ("log", _overwrite, 6),
        ("blob", _flip, 4),
        ("blob", _truncate, 4),
    )
    for seed in range(count)
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a writer that was killed: the store, its log and its blobs."""
    folder = tmp_path_factory.mktemp("written")
    ended = subprocess.run(
        [sys.executable, "-c", WRITE, f"sqlite:///{folder}/p.db"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=False,
        text=True,
    )
    assert ended.returncode == 9, ended.stderr
    (folder / "p.db-shm").unlink()
    assert (folder / "p.db-wal").stat().st_size > 0
    return folder


def _received(queue: Queue) -> list[bytes]:
    found = []
    while deliveries := queue.receive(max_messages=20):
        found += [delivery.body for delivery in deliveries]
        queue.ack(deliveries)
    return found


def test_without_damage_everything_arrives(written: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written, tmp_path / "copy"))

    with connect(f"sqlite:///{folder}/p.db") as backend:
        found = _received(backend.queue("jobs"))

    assert sorted(found) == sorted(body(number).encode() for number in range(MESSAGES))


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "damage", "seed"), CASES)
def test_damage_is_an_error_that_names_the_file_or_leaves_every_body_as_it_was(
    written: Path, tmp_path: Path, pattern: str, damage: Damage, seed: int
) -> None:
    chance = random.Random(f"{pattern} {damage.__name__} {seed}")
    folder = Path(shutil.copytree(written, tmp_path / "copy"))
    damage(chance.choice(sorted(folder.glob(pattern))), chance)

    found: list[bytes] = []
    error: PostroadError | None = None
    try:
        with connect(f"sqlite:///{folder}/p.db") as backend:
            queue = backend.queue("jobs")
            shown = [message.body for message in queue.peek(limit=MESSAGES) if not message.attributes]
            found = [*shown, *_received(queue)]
            queue.send([OutgoingMessage(body(0))])
            found += _received(queue)
    except PostroadError as raised:
        error = raised

    assert error is None or "p.db" in str(error), error
    assert all(is_unchanged(each) for each in found)
    assert error is not None or found
