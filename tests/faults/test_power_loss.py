"""`postroad verify powerloss`: the engine loses nothing to a power cut, and the simulation would notice a loss."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from postroad import OutgoingMessage, QueueSpec, connect
from postroad.errors import InvalidInput
from postroad.testing.powerloss import Names, Promise, Sync, Write, images, recorded
from postroad.testing.powerloss.images import SECTOR, survivors
from postroad.testing.powerloss.recording import Step
from postroad.testing.powerloss.trial import verify_power_loss

FATES = {"dropped", "kept", "prefix", "subset", "torn"}


@pytest.mark.long
@pytest.mark.slow
def test_two_thousand_power_cuts_lose_nothing_that_was_acknowledged() -> None:
    found = verify_power_loss(2_000, seed=8)

    assert (found.verdict, found.lost, found.corrupt, found.max_lost) == ("ok", 0, 0, 0)
    assert found.commits == 240


@pytest.mark.slow
def test_without_the_sync_of_the_log_messages_are_lost_and_nothing_is_corrupt() -> None:
    found = verify_power_loss(200, seed=8, synchronous="NORMAL")

    assert (found.verdict, found.corrupt) == ("violated", 0)
    assert found.lost >= found.max_lost > 0


@pytest.mark.slow
def test_without_any_sync_messages_are_lost_or_files_are_corrupt() -> None:
    found = verify_power_loss(60, seed=8, synchronous="OFF")

    assert found.verdict == "violated"
    assert found.lost + found.corrupt > 0


def test_a_file_is_recorded_from_its_making_to_its_new_name(tmp_path: Path) -> None:
    with recorded(tmp_path) as recording:
        file = os.open(tmp_path / "draft", os.O_WRONLY | os.O_CREAT)
        os.write(file, b"one ")
        os.write(file, b"two")
        os.fsync(file)
        os.close(file)
        os.rename(tmp_path / "draft", tmp_path / "done")  # noqa: PTH104 - as the product does
        os.unlink(tmp_path / "done")  # noqa: PTH108
    os.mkdir(tmp_path / "later")  # noqa: PTH102

    assert recording.steps == [
        Names("", {"draft": 1}),
        Write(1, 0, b"one "),
        Write(1, 4, b"two"),
        Sync(1, 3),
        Names("", {"done": 1, "draft": None}),
        Names("", {"done": None}),
    ]


def test_a_file_that_is_opened_while_it_gets_its_name_is_the_one_that_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, openers = os.link, []

    def append() -> None:
        file = os.open(tmp_path / "done", os.O_WRONLY | os.O_APPEND)
        os.write(file, b"two")
        os.close(file)

    def link_while_another_opens(source: Path, target: Path) -> None:
        link(source, target)
        openers.append(threading.Thread(target=append))
        openers[0].start()
        # It must wait until the name is recorded; without that it would be done by now.
        openers[0].join(0.3)

    monkeypatch.setattr(os, "link", link_while_another_opens)
    with recorded(tmp_path) as recording:
        file = os.open(tmp_path / "draft", os.O_WRONLY | os.O_CREAT)
        os.write(file, b"one ")
        os.close(file)
        os.link(tmp_path / "draft", tmp_path / "done")
        openers[0].join()

    written = [(step.owner, step.data) for step in recording.steps if isinstance(step, Write)]
    assert written == [(1, b"one "), (1, b"two")]


def test_writes_truncations_removals_and_syncs_of_sqlite_are_recorded_and_its_shared_memory_is_not(
    tmp_path: Path,
) -> None:
    with recorded(tmp_path) as recording, connect(f"sqlite:///{tmp_path}/p.db") as backend:
        backend.create_queue(QueueSpec("jobs")).send([OutgoingMessage("one")])
        backend.compact()

    kinds = {type(step).__name__ for step in recording.steps}
    named = {name: file for step in recording.steps if isinstance(step, Names) for name, file in step.files.items()}
    assert kinds == {"Write", "Truncate", "Names", "Sync"}
    assert named["p.db"] is not None
    # It is removed when the last connection closes.
    assert named["p.db-wal"] is None
    assert "p.db-shm" not in named


def test_what_was_synced_is_in_every_image_and_what_was_not_may_be_missing_or_torn() -> None:
    old, new = b"a" * 4 * SECTOR, b"b" * 4 * SECTOR
    steps: list[Step] = [
        Names("", {"f": 1}),
        Write(1, 0, old),
        Sync("", 1),
        Sync(1, 2),
        Promise("old"),
        Write(1, 100, new),
    ]

    found = list(images(steps, 400, random.Random(1), first=len(steps)))

    assert {cut.fate for cut in found} == FATES
    assert {len(cut.files["f"]) for cut in found} >= {len(old), len(new) + 100}
    assert all(cut.promised == {"old"} for cut in found)
    assert all(cut.files["f"][:100] == old[:100] for cut in found)
    torn = [cut for cut in found if b"ba" in cut.files["f"]]
    assert torn
    assert all((bytes(cut.files["f"]).index(b"ba") + 1) % SECTOR == 0 for cut in torn)


def test_a_sync_covers_nothing_that_came_after_it_began() -> None:
    steps: list[Step] = [Names("", {"f": 1}), Sync("", 1), Write(1, 0, b"late"), Sync(1, 2)]

    contents = {bytes(cut.files["f"]) for cut in images(steps, 100, random.Random(1), first=len(steps))}

    assert contents == {b"", b"late"}


def test_a_name_needs_a_sync_of_its_folder_and_of_those_above() -> None:
    steps: list[Step] = [Names("", {"d": 0}), Names("d", {"d/f": 1}), Write(1, 0, b"x"), Sync(1, 3), Sync("d", 3)]

    def kept(steps: list[Step]) -> set[tuple[str, ...]]:
        return {tuple(cut.files) for cut in images(steps, 60, random.Random(1), first=len(steps))}

    assert kept(steps) == {(), ("d/f",)}
    assert kept([*steps, Sync("", 5)]) == {("d/f",)}


def test_the_same_seed_makes_the_same_images(tmp_path: Path) -> None:
    with recorded(tmp_path) as recording, connect(f"sqlite:///{tmp_path}/p.db") as backend:
        backend.create_queue(QueueSpec("jobs"))

    one, two = (list(images(recording.steps, 20, random.Random(3))) for _ in range(2))

    assert one == two


def test_only_a_prefix_of_the_changes_may_be_left_and_it_may_end_inside_a_write() -> None:
    changes = [Write(1, 0, b"a" * 2 * SECTOR), Write(1, 5_000, b"b" * SECTOR)]

    prefixes = [left for fate, left in (survivors(changes, random.Random(n)) for n in range(200)) if fate == "prefix"]

    whole = [Write(1, 0, b"a" * SECTOR), Write(1, SECTOR, b"a" * SECTOR)]
    assert {len(left) for left in prefixes} >= {0, 1, 2}
    assert all(list(left)[:2] == whole[: len(left)] for left in prefixes)


@pytest.mark.parametrize("count", [0, -1])
def test_a_number_of_images_below_one_is_refused(count: int) -> None:
    with pytest.raises(InvalidInput, match="images"):
        verify_power_loss(count)
