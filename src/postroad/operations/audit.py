"""The audit file: one record a line, each with the hash of the record before it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, InvalidInput, PostroadError, StorageFull
from postroad.settings import actor as settings_actor, audit_path, default_url

FIRST_PREV = "0" * 64
RECOVERED = "recovered"
_BLOCK = 4_096
_KEYS = frozenset({"seq", "at", "actor", "action", "target", "detail", "prev", "hash"})


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Who did what to which target, and when.

    Attributes:
        seq: Its number, from 1.
        at: When it was done.
        actor: Who did it.
        action: What was done.
        target: What it was done to.
        detail: Names and values that describe it.
        prev: The hash of the previous record.
        hash: The hash of this record.
    """

    seq: int
    at: str
    actor: str
    action: str
    target: str
    detail: Mapping[str, Any]
    prev: str
    hash: str


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """The result of a check: the first line that breaks the chain, if any, and the hash of the last good record.

    Attributes:
        ok: Whether the chain is whole.
        records: How many records were read.
        bad_line: The number of the first line that breaks it.
        head: The hash of the last good record.
    """

    ok: bool
    records: int
    bad_line: int | None
    head: str


class AuditLog:
    """One audit file, to which any number of processes may append.

    Args:
        path: The file; by default `$POSTROAD_AUDIT_LOG`, or a file beside the default backend's data.
        clock: Where to read the time, by default the machine's clock. Change it in tests.

    Raises:
        ConfigurationError: The file cannot be read or written; raised by every method.

    Example:
        for record in AuditLog().read():
            print(record.at, record.actor, record.action, record.target)
    """

    def __init__(self, path: Path | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = audit_path(default_url()) if path is None else Path(path)
        self._clock = clock

    def append(self, action: str, target: str, detail: Mapping[str, Any], *, actor: str | None = None) -> AuditRecord:
        """Append one record, which survives a power cut once this returns.

        Args:
            action: What is done, such as `queue.purge`.
            target: What it is done to.
            detail: Names and values that describe it.
            actor: Who does it; by default `$POSTROAD_ACTOR` or the user.
        """
        with self._opened() as file:
            size = file.seek(0, os.SEEK_END)
            last, torn = _last(file, size)
            text = b""
            if torn is not None:
                text = b"\n"
                if torn:
                    last = self._record(RECOVERED, str(self.path), {"torn_bytes": torn}, settings_actor(), last)
                    text += _line(last)
            record = self._record(action, target, dict(detail), actor or settings_actor(), last)
            append(file.fileno(), size, text + _line(record))
        return record

    def read(self) -> Iterator[AuditRecord]:
        """Yield every record that can be read, oldest first."""
        for line in self._lines():
            if (record := _parsed(line)) is not None:
                yield record

    def newest(self, limit: int, *, before: int | None = None) -> list[AuditRecord]:
        """Return up to `limit` records, newest first; only those whose `seq` is below `before`, if it is given."""
        records = (record for line in self._lines(newest_first=True) if (record := _parsed(line)) is not None)
        return list(islice((record for record in records if before is None or record.seq < before), limit))

    def verify(self, *, head: str | None = None) -> AuditCheck:
        """Check the chain from its beginning; with `head`, a hash that was noted earlier must be in it."""
        last: AuditRecord | None = None
        records, number = 0, 0
        torn: int | None = None
        found = head is None or head == FIRST_PREV
        for number, line in enumerate(self._lines(), 1):
            record = _parsed(line)
            if record is None:
                torn = torn or number
                continue
            if not _follows(record, last) or (torn is not None and record.action != RECOVERED):
                torn = torn or number
                break
            last, records, torn = record, records + 1, None
            found = found or record.hash == head
        bad = torn if torn is not None else None if found else number + 1
        return AuditCheck(bad is None, records, bad, FIRST_PREV if last is None else last.hash)

    def _lines(self, *, newest_first: bool = False) -> Iterator[bytes]:
        if not self.path.exists():
            return
        try:
            with self.path.open("rb") as file:
                lines = backwards(file, file.seek(0, os.SEEK_END)) if newest_first else file
                yield from (line.rstrip(b"\n") for line in lines)
        except OSError as error:
            raise self._unusable("read", error) from error

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """Open the file, locked against all other appends."""
        try:
            is_new = not self.path.exists()
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if is_new:
                    sync_directory(self.path.absolute().parent)
                yield file
        except OSError as error:
            raise self._unusable("written", error) from error

    def _record(
        self, action: str, target: str, detail: dict[str, Any], actor: str, last: AuditRecord | None
    ) -> AuditRecord:
        seq, prev = (1, FIRST_PREV) if last is None else (last.seq + 1, last.hash)
        at = self._clock.now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        record = AuditRecord(seq, at, actor, action, target, detail, prev, "")
        return replace(record, hash=_hash(record))

    def _unusable(self, verb: str, error: OSError) -> PostroadError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StorageFull(f"audit file {self.path}: the disk is full; nothing was changed")
        return ConfigurationError(
            f"audit file {self.path} cannot be {verb}: {error.strerror or error}",
            field="POSTROAD_AUDIT_LOG",
            remedy="Make it writable, or name another with POSTROAD_AUDIT_LOG; nothing was changed.",
        )


def _last(file: BinaryIO, size: int) -> tuple[AuditRecord | None, int | None]:
    """Return the last good record and the size of a torn line behind it; None if the file ends with a whole line."""
    lines = backwards(file, size)
    end = next(lines)
    if end and (record := _parsed(end)) is not None:
        return record, 0
    found = next((record for line in lines if (record := _parsed(line)) is not None), None)
    return found, len(end) or None


def backwards(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the lines from the last to the first, beginning with what follows the last line end."""
    tail, start = b"", size
    while start > 0:
        begin = max(0, start - _BLOCK)
        file.seek(begin)
        tail, *lines = (file.read(start - begin) + tail).split(b"\n")
        yield from reversed(lines)
        start = begin
    yield tail


def _parsed(line: bytes) -> AuditRecord | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.keys() != _KEYS:
        return None
    return AuditRecord(**fields) if isinstance(fields["seq"], int) and isinstance(fields["hash"], str) else None


def _follows(record: AuditRecord, last: AuditRecord | None) -> bool:
    seq, prev = (1, FIRST_PREV) if last is None else (last.seq + 1, last.hash)
    return record.seq == seq and record.prev == prev and record.hash == _hash(record)


def _hash(record: AuditRecord) -> str:
    fields = asdict(record)
    del fields["hash"]
    return hashlib.sha256(_canonical(fields)).hexdigest()


def _line(record: AuditRecord) -> bytes:
    return _canonical(asdict(record)) + b"\n"


def _canonical(fields: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"detail: cannot be written as JSON: {error}",
            field="detail",
            remedy="Give text, finite numbers, booleans, lists and mappings with text keys; nothing was recorded.",
        ) from error


def append(descriptor: int, size: int, text: bytes) -> None:
    """Have the text behind the first `size` bytes of a file, on the disk; if that fails, these are all it has."""
    try:
        written = 0
        while written < len(text):
            written += os.pwrite(descriptor, text[written:], size + written)
        os.fsync(descriptor)
    except OSError:
        # Half a line at the end would hide the next one.
        with suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


def sync_directory(directory: Path) -> None:
    """Have the names of new files in the directory on the disk when this returns."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
