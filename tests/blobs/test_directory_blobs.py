from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.blobs.directory import DirectoryBlobs
from postroad.blobs.port import BlobRef
from postroad.errors import StorageDamaged, StorageFull, Unavailable
from postroad.testing.blobs import BlobsConformance, BlobsFixture
from postroad.testing.clock import FakeClock


class TestDirectoryBlobs(BlobsConformance):
    @pytest.fixture
    def ground(self, tmp_path: Path) -> BlobsFixture:
        clock = FakeClock()
        return BlobsFixture(blobs=DirectoryBlobs(tmp_path / "blobs", clock), advance=clock.advance)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def blobs(root: Path) -> DirectoryBlobs:
    return DirectoryBlobs(root)


@pytest.fixture(params=[0o000, 0o077, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_sec04_files_and_folders_are_the_owners_alone_whatever_the_umask(root: Path, umask: int) -> None:
    DirectoryBlobs(root).put("overflow/20300101/a", b"secret")

    modes = {path.relative_to(root).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")}
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert modes == {"overflow": 0o700, "overflow/20300101": 0o700, "overflow/20300101/a+blob": 0o600}


def test_sec05_a_symlink_in_a_files_place_is_not_followed(root: Path, blobs: DirectoryBlobs, tmp_path: Path) -> None:
    ref = blobs.put("overflow/a", b"mine")
    (tmp_path / "elsewhere").write_bytes(b"mine")
    (root / "overflow" / "a+blob").unlink()
    (root / "overflow" / "a+blob").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StorageDamaged, match="symlink"):
        blobs.get(ref)


def test_sec05_a_symlink_in_a_folders_place_is_not_followed(root: Path, blobs: DirectoryBlobs, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (root / "overflow").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StorageDamaged, match="symlink"):
        blobs.put("overflow/a", b"mine")
    assert _files(tmp_path / "elsewhere") == []


def test_sec05_pruning_does_not_follow_symlinks(root: Path, blobs: DirectoryBlobs, tmp_path: Path) -> None:
    blobs.put("overflow/day/a", b"mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "old+blob").write_bytes(b"theirs")
    os.utime(tmp_path / "elsewhere" / "old+blob", (1, 1))
    (root / "overflow" / "link").symlink_to(tmp_path / "elsewhere")

    blobs.prune("overflow/", older_than=3600)

    assert _files(tmp_path / "elsewhere") != []


def test_a_pipe_in_a_files_place_is_refused_and_does_not_block(root: Path, blobs: DirectoryBlobs) -> None:
    ref = blobs.put("overflow/a", b"mine")
    (root / "overflow" / "a+blob").unlink()
    os.mkfifo(root / "overflow" / "a+blob")

    with pytest.raises(StorageDamaged, match="plain file"):
        blobs.get(ref)


def test_sec05_changed_bytes_of_the_same_length_are_noticed(root: Path, blobs: DirectoryBlobs) -> None:
    ref = blobs.put("overflow/a", b"mine")
    (root / "overflow" / "a+blob").write_bytes(b"ours")

    with pytest.raises(StorageDamaged):
        blobs.get(ref)


def test_a_failed_write_leaves_nothing_and_the_old_blob_stands(
    root: Path, blobs: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = blobs.put("overflow/a", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageFull):
            blobs.put("overflow/a", b"new")

    assert blobs.get(ref) == b"old"
    assert [path.name for path in _files(root)] == ["a+blob"]


def test_a_crashed_writers_draft_is_pruned_with_the_rest_but_not_counted(root: Path, blobs: DirectoryBlobs) -> None:
    blobs.put("overflow/day/a", b"mine")
    draft = root / "overflow" / "day" / ".draft"
    draft.write_bytes(b"half")
    for path in _files(root):
        os.utime(path, (1, 1))

    removed = blobs.prune("overflow/", older_than=3600)

    assert removed == 1
    assert list((root / "overflow").iterdir()) == []


def test_a_directory_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises((Unavailable, StorageDamaged)):
        DirectoryBlobs(tmp_path / "file" / "blobs")


def test_blobs_survive_a_reopening(root: Path, blobs: DirectoryBlobs) -> None:
    ref = blobs.put("overflow/a", b"mine")

    assert DirectoryBlobs(root).get(BlobRef(key=ref.key, size=ref.size, sha256=ref.sha256)) == b"mine"
