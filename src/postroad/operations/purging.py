"""Purge for operators: confirmed, with a reason, recorded, and into an archive if wanted."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from postroad.errors import InvalidInput
from postroad.operations.archiving import Archive
from postroad.ports import Store
from postroad.queues import Queue
from postroad.queues import purge as remove
from postroad.telemetry import get_logger, recorded


def purge(
    backend: Store, queue: str, *, confirm: str, reason: str, archive: Path | None = None, actor: str | None = None
) -> int:
    """Remove every message of the queue; how many there were. With an archive, only what is safe in it.

    `confirm` repeats the queue's name. Running it again after a crash goes on, and appends to the archive.
    """
    if confirm != queue:
        raise InvalidInput(
            f'confirm: {confirm!r} is not "{queue}"', field="confirm",
            remedy="Repeat the queue's name; nothing was changed.",
        )  # fmt: skip
    if not reason.strip():
        raise InvalidInput("reason: is empty", field="reason", remedy="Say why; nothing was changed.")
    source = backend.queue(queue)
    kept = None if archive is None else Archive(Path(archive))
    detail: dict[str, Any] = {"reason": reason} | ({} if kept is None else {"archive": str(kept.path)})
    with nullcontext() if kept is None else kept:
        with recorded(backend.audit_log(), "queue.purge", queue, detail, actor=actor) as done:
            purged = _emptied(source, kept, done)
    get_logger("queues").info("queue_purged", queue=queue, purged=purged, reason=reason)
    return purged


def _emptied(source: Queue, archive: Archive | None, done: dict[str, Any]) -> int:
    try:
        done["purged"] = remove(source, None if archive is None else archive.write)
    finally:
        if archive is not None:
            done["archived"] = archive.written
    return int(done["purged"])
