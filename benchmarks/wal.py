"""Counting the commits in a write-ahead log from outside, the same way for every side."""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")


def count_commits(directory: Path) -> int:
    """How many commits the logs under the directory hold since their last restart."""
    return sum(_commits(path.read_bytes()) for path in directory.rglob("*-wal"))


def _commits(log: bytes) -> int:
    if len(log) < _HEADER.size:
        return 0
    _, _, page_size, _, salt1, salt2, _, _ = _HEADER.unpack_from(log)
    step = _FRAME.size + page_size
    commits = 0
    for start in range(_HEADER.size, len(log) - step + 1, step):
        _, pages_after_commit, frame_salt1, frame_salt2, _, _ = _FRAME.unpack_from(log, start)
        if (frame_salt1, frame_salt2) != (salt1, salt2):
            break
        commits += pages_after_commit > 0
    return commits
