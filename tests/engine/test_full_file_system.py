"""A file system that is really full: sends are refused, and everything that was accepted can be taken out."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_SCENES = Path(__file__).with_name("full_disk.py")


@functools.cache
def _own_mounts() -> tuple[str, ...]:
    """The command before one that may mount; skips where nobody may."""
    unshare = shutil.which("unshare")
    for options in (("--mount",), ("--mount", "--user", "--map-root-user")):
        command = (unshare or "unshare", *options)
        probe = (*command, "mount", "-t", "tmpfs", "none", "/mnt")
        if unshare and subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return command
    pytest.skip("absent: a small file system; unshare --mount needs root or user namespaces")


def _play(scene: str, megabytes: int, tmp_path: Path) -> None:
    played = subprocess.run(
        [*_own_mounts(), sys.executable, str(_SCENES), scene, str(megabytes), str(tmp_path)],
        capture_output=True,
        check=False,
        text=True,
    )
    assert played.returncode == 0, played.stderr


_SIZES = [6, pytest.param(24, marks=pytest.mark.slow), pytest.param(60, marks=pytest.mark.slow)]


@pytest.mark.parametrize("megabytes", _SIZES)
def test_the_process_that_filled_the_disk_drains_everything_and_can_send_again(tmp_path: Path, megabytes: int) -> None:
    _play("same_process", megabytes, tmp_path)


@pytest.mark.parametrize("megabytes", _SIZES)
@pytest.mark.parametrize("scene", ["new_process_after_a_clean_end", "new_process_after_a_kill"])
def test_a_new_process_drains_everything(tmp_path: Path, scene: str, megabytes: int) -> None:
    _play(scene, megabytes, tmp_path)


def test_two_processes_drain_a_full_disk_together(tmp_path: Path) -> None:
    _play("two_processes", 6, tmp_path)


def test_what_another_program_leaves_no_room_for_is_refused_and_the_rest_is_drained(tmp_path: Path) -> None:
    _play("another_program_fills_the_disk", 24, tmp_path)


def test_however_many_messages_are_leased_on_a_full_disk_they_can_be_acked(tmp_path: Path) -> None:
    _play("leases_leave_room_for_acks", 6, tmp_path)


def test_however_many_messages_are_rejected_on_a_full_disk_the_others_can_be_acked(tmp_path: Path) -> None:
    _play("dead_letters_leave_room_for_acks", 6, tmp_path)


def test_a_queue_is_purged_and_deleted_on_a_full_disk(tmp_path: Path) -> None:
    _play("purge_and_delete", 6, tmp_path)


def test_a_drained_file_is_compacted_on_a_full_disk(tmp_path: Path) -> None:
    _play("compact_a_drained_file", 6, tmp_path)


def test_items_topics_streams_and_agents_go_on_with_a_full_disk(tmp_path: Path) -> None:
    _play("items_topics_streams_and_agents", 24, tmp_path)
