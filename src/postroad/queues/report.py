"""What a redrive tells of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

Status = Literal["running", "done", "limit", "returned", "canary_failed", "dry_run", "native"]


class RedriveReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a redrive did, or would do: `skipped` by reason, `destinations` by queue."""

    run_id: str
    status: Status
    matched: int
    moved: int
    returned: int
    skipped: Mapping[str, int]
    destinations: Mapping[str, int]
    task_handle: str | None = None


Progress = Callable[[RedriveReport], None]
