"""A blob that was put is there after a power cut, with all folders on the way to it."""

from __future__ import annotations

import os
import random
from pathlib import Path

from postroad import OutgoingMessage, QueueSpec, connect
from postroad.blobs import BlobRef, DirectoryBlobs
from postroad.testing.powerloss import Recording, image, recorded

CUTS = 25
DATA = b"x" * 3_000
LARGE = b"y" * 1_100_000


def _check_cuts(recording: Recording, end: int, folder: Path, root: str, ref: BlobRef) -> None:
    for seed in range(CUTS):
        cut = image(recording, end, random.Random(seed))
        assert DirectoryBlobs(cut.write(folder) / root).get(ref) == DATA, cut.fate


def test_a_blob_survives_a_cut_right_behind_its_put(tmp_path: Path) -> None:
    with recorded(tmp_path) as recording:
        ref = DirectoryBlobs(tmp_path / "new" / "blobs").put("overflow/20300101/a", DATA)

    _check_cuts(recording, len(recording.steps), tmp_path / "after", "new/blobs", ref)


def test_folders_that_another_process_has_just_made_are_brought_to_the_disk_too(tmp_path: Path) -> None:
    with recorded(tmp_path) as recording:
        for name in ("blobs", "blobs/overflow", "blobs/overflow/20300101"):
            os.mkdir(tmp_path / name)  # noqa: PTH102 - as the other process does
        ref = DirectoryBlobs(tmp_path / "blobs").put("overflow/20300101/a", DATA)

    _check_cuts(recording, len(recording.steps), tmp_path / "after", "blobs", ref)


def test_a_large_body_survives_a_cut_right_behind_its_send(tmp_path: Path) -> None:
    with recorded(tmp_path) as recording, connect(f"sqlite:///{tmp_path}/p.db") as backend:
        assert backend.create_queue(QueueSpec("jobs")).send([OutgoingMessage(LARGE)])[0].ok
        end = len(recording.steps)

    for seed in range(CUTS):
        cut = image(recording, end, random.Random(seed))
        with connect(f"sqlite:///{cut.write(tmp_path / 'after')}/p.db") as backend:
            (delivery,) = backend.queue("jobs").receive()
            assert delivery.body == LARGE, cut.fate
