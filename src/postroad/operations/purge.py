"""Purge for operators: confirmed, with a reason and an audit record, and into an archive if wanted."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import msgspec

from postroad.errors import InvalidInput, StorageFull
from postroad.operations.audit import append, backwards, sync_directory
from postroad.ports import Store
from postroad.queues import PeekedMessage, purge as remove
from postroad.telemetry import get_logger, recorded

_BEGINNING: Final = b'{"message_id":'


class Archive:
    """One archive, which only its owner may read. Messages are appended, never overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self._is_new = not path.exists()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._size = self._prepared()
            except BaseException:
                os.close(self._descriptor)
                raise
        except OSError as error:
            raise _refused(path, f"cannot be written: {error.strerror}") from error

    def write(self, messages: Sequence[PeekedMessage]) -> None:
        """Append the messages; they are on the disk when this returns."""
        text = b"".join(_line(message) for message in messages)
        try:
            append(self._descriptor, self._size, text)
        except OSError as error:
            raise StorageFull(f"archive {self.path} cannot be written: {error.strerror or error}") from error
        self._size += len(text)
        self.written += len(messages)

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        os.close(self._descriptor)
        if failure is not None and self._is_new and not self.written:
            # It was made for a purge that did not take place.
            self.path.unlink(missing_ok=True)

    def _prepared(self) -> int:
        """Cut off a line that a crash tore, whose message is still in the queue, and return the size of the file."""
        size = os.fstat(self._descriptor).st_size
        if size and not _BEGINNING.startswith(start := os.pread(self._descriptor, len(_BEGINNING), 0)):
            raise _refused(self.path, f"holds something else: it begins with {start!r}")
        os.fchmod(self._descriptor, 0o600)
        with open(self._descriptor, "rb", closefd=False) as file:
            end = size - len(next(backwards(file, size)))
        os.ftruncate(self._descriptor, end)
        if self._is_new:
            sync_directory(self.path.absolute().parent)
        return end


def _line(message: PeekedMessage) -> bytes:
    document: dict[str, Any] = {
        "message_id": message.message_id,
        "body": message.body.decode(errors="replace"),
        "attributes": dict(message.attributes),
        "group": message.group,
        "receive_count": message.receive_count,
        "sent_at": message.sent_at.isoformat().replace("+00:00", "Z"),
        "sequence": message.sequence,
        "state": message.state,
    }
    try:
        message.body.decode()
    except UnicodeDecodeError:
        # The body was damaged on the disk: archive its bytes.
        document["body_base64"] = base64.b64encode(message.body).decode()
    return msgspec.json.encode(document) + b"\n"


def _refused(path: Path, why: str) -> InvalidInput:
    return InvalidInput(
        f"archive: {path} {why}", field="archive", remedy="Name a file that can be written; nothing was changed."
    )


def purge(
    backend: Store, queue: str, *, confirm: str, reason: str, archive: Path | None = None, actor: str | None = None
) -> int:
    """Remove every message of a queue, with an audit record, and return how many. A repeat after a crash continues.

    Args:
        backend: The store that holds the queue.
        queue: The name of the queue.
        confirm: The name of the queue again.
        reason: Why, for the audit record.
        archive: A file to which messages are appended, as lines of JSON, before they are removed; by default none. With
            an archive only messages that are safe in it are removed, which leaves what somebody has leased on SQS.
        actor: Who, for the audit record; by default `$POSTROAD_ACTOR` or the user.

    Raises:
        InvalidInput: `confirm` is not the queue's name, `reason` is empty, or the archive cannot be written.
        PurgeRunning: SQS has not finished the previous purge.
        StorageFull: The disk has no room for the archive.

    Example:
        purge(backend, "orders-dlq", confirm="orders-dlq", reason="test data", archive=Path("orders.jsonl"))
    """
    if confirm != queue:
        raise InvalidInput(
            f'confirm: {confirm!r} is not "{queue}"',
            field="confirm",
            remedy="Repeat the queue's name; nothing was changed.",
        )
    if not reason.strip():
        raise InvalidInput("reason: is empty", field="reason", remedy="Say why; nothing was changed.")
    source = backend.queue(queue)
    kept = None if archive is None else Archive(Path(archive))
    detail: dict[str, Any] = {"reason": reason} | ({} if kept is None else {"archive": str(kept.path)})
    with nullcontext() if kept is None else kept:
        with recorded(backend.audit_log(), "queue.purge", queue, detail, actor=actor) as done:
            try:
                purged = done["purged"] = remove(source, None if kept is None else kept.write)
            finally:
                if kept is not None:
                    done["archived"] = kept.written
    get_logger("queues").info("queue_purged", queue=queue, purged=purged, reason=reason)
    return purged
