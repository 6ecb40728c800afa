"""The audit file: one record a line, each bound to the one before it by its hash."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, InvalidInput
from postroad.settings import actor as settings_actor, audit_path, default_url

FIRST_PREV = "0" * 64
RECOVERED = "recovered"
_BLOCK = 4_096
_KEYS = frozenset({"seq", "at", "actor", "action", "target", "detail", "prev", "hash"})


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Who did what to what, when. `hash` is that of all the rest, `prev` that of the record before."""

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
    """Whether the chain holds; `bad_line` is the first that does not, `head` the hash of the last good record."""

    ok: bool
    records: int
    bad_line: int | None
    head: str


class AuditLog:
    """One audit file, appended to by any number of processes."""

    def __init__(self, path: Path | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = audit_path(default_url()) if path is None else Path(path)
        self._clock = clock

    def append(self, action: str, target: str, detail: Mapping[str, Any], *, actor: str | None = None) -> AuditRecord:
        """Write one record behind the last; when this returns it survives a power cut."""
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
            self._write(file, size, text + _line(record))
        return record

    def read(self) -> Iterator[AuditRecord]:
        """Every record that can be read, from the first on."""
        for line in self._lines():
            if (record := _parsed(line)) is not None:
                yield record

    def verify(self, *, head: str | None = None) -> AuditCheck:
        """Follow the chain from its beginning; with `head`, a hash that was noted earlier has to be in it."""
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

    def _lines(self) -> Iterator[bytes]:
        if not self.path.exists():
            return
        try:
            with self.path.open("rb") as file:
                yield from (line.rstrip(b"\n") for line in file)
        except OSError as error:
            raise self._unusable("read", error) from error

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """The file, locked against all other appends."""
        try:
            is_new = not self.path.exists()
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if is_new:
                    _sync_directory(self.path.absolute().parent)
                yield file
        except OSError as error:
            raise self._unusable("written", error) from error

    def _record(
        self, action: str, target: str, detail: dict[str, Any], actor: str, last: AuditRecord | None
    ) -> AuditRecord:
        seq, prev = (1, FIRST_PREV) if last is None else (last.seq + 1, last.hash)
        at = self._clock.now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = {
            "seq": seq,
            "at": at,
            "actor": actor,
            "action": action,
            "target": target,
            "detail": detail,
            "prev": prev,
        }
        return AuditRecord(**fields, hash=_hash(fields))  # type: ignore[arg-type]  # the fields by their names

    def _write(self, file: BinaryIO, size: int, text: bytes) -> None:
        try:
            file.seek(size)
            written = 0
            while written < len(text):
                written += file.write(text[written:])
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise

    def _unusable(self, verb: str, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"audit file {self.path} cannot be {verb}: {error.strerror or error}",
            field="POSTROAD_AUDIT_LOG",
            remedy="Make it writable, or name another with POSTROAD_AUDIT_LOG; nothing was changed.",
        )


def _last(file: BinaryIO, size: int) -> tuple[AuditRecord | None, int | None]:
    """The last good record, and how many bytes lie torn behind it: None when the file ends with a whole line."""
    lines = _backwards(file, size)
    end = next(lines)
    if end and (record := _parsed(end)) is not None:
        return record, 0
    found = next((record for line in lines if (record := _parsed(line)) is not None), None)
    return found, len(end) or None


def _backwards(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The lines from the last to the first, beginning with what stands behind the last line end."""
    tail, start = b"", size
    while start > 0:
        begin = max(0, start - _BLOCK)
        file.seek(begin)
        tail, *lines = (file.read(start - begin) + tail).split(b"\n")
        yield from reversed(lines)
        start = begin
    yield tail


def _parsed(line: bytes) -> AuditRecord | None:
    """The record of a line, or None when it is none."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.keys() != _KEYS:
        return None
    return AuditRecord(**fields) if isinstance(fields["seq"], int) and isinstance(fields["hash"], str) else None


def _follows(record: AuditRecord, last: AuditRecord | None) -> bool:
    seq, prev = (1, FIRST_PREV) if last is None else (last.seq + 1, last.hash)
    fields = asdict(record)
    del fields["hash"]
    return record.seq == seq and record.prev == prev and record.hash == _hash(fields)


def _hash(fields: Mapping[str, Any]) -> str:
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


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
