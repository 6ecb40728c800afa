"""SQLite's errors translated into Postroad's."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import apsw
import msgspec

from postroad.errors import ConfigurationError, OutcomeUnknown, PostroadError, StorageDamaged, StorageFull, Unavailable

T = TypeVar("T")

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
NO_ROOM_OR_DESCRIPTOR = (*_NO_ROOM, *_NO_DESCRIPTOR)
SIGNS_OF_DAMAGE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    struct.error,
    msgspec.MsgspecError,
)
"""What work raises when a column holds a value that was never written, or when the work itself is wrong."""
_UNSURE = {apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC}


def translate(error: apsw.Error | OSError, path: Path, *, system_errno: int = 0) -> PostroadError:
    """Return the Postroad error that says what happened to the file and what to do.

    `system_errno` is the number of the system's last error, which SQLite keeps for each connection.
    """
    if _is_full(error, system_errno):
        return StorageFull(f"{path}: the disk is full; nothing was stored")
    if _is_short_of_descriptors(error):
        return Unavailable(
            f"{path}: this process has no file descriptor left",
            remedy="Close files and connections that are not needed, or raise the limit (`ulimit -n`).",
        )
    if isinstance(error, apsw.NotADBError):
        return ConfigurationError(f"{path}: is not a Postroad file", field="url")
    if isinstance(error, apsw.CorruptError):
        return StorageDamaged(f"{path}: the file is damaged: {error}")
    if isinstance(error, apsw.BusyError):
        return Unavailable(f"{path}: another process kept the file locked for 5 seconds", remedy="Try again.")
    if isinstance(error, apsw.SQLError) and str(error).startswith(("no such table", "no such column")):
        return StorageDamaged(
            f"{path}: {error}",
            remedy="Another program has changed the file: restore a backup, or name a file that Postroad made.",
        )
    if isinstance(error, apsw.IOError) and getattr(error, "extendedresult", None) in _UNSURE:
        return OutcomeUnknown(f"{path}: the disk did not confirm the write: {error}")
    return Unavailable(f"{path}: {error}", remedy="Check the file, its directory and its permissions.")


def _is_short_of_descriptors(error: apsw.Error | OSError) -> bool:
    if isinstance(error, OSError):
        return error.errno in _NO_DESCRIPTOR
    if not isinstance(error, apsw.CantOpenError):
        return False
    # SQLite does not say why it could not open its files: the file, a journal or log, shared memory, the directory.
    taken: list[int] = []
    try:
        taken.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(4))
    except OSError as tried:
        return tried.errno in _NO_DESCRIPTOR
    finally:
        for descriptor in taken:
            os.close(descriptor)
    return False


def explain(error: Exception, connection: apsw.Connection, path: Path) -> Exception:
    """Return the error as one of Postroad's: `StorageDamaged` if it comes from a value that was never written."""
    if isinstance(error, PostroadError):
        return error
    if isinstance(error, apsw.Error):
        return translate(error, path, system_errno=connection.system_errno)
    damage: object = error
    if not isinstance(error, UnicodeDecodeError | msgspec.MsgspecError):
        try:
            # SQLite reads the whole file.
            damage = connection.pragma("quick_check", 1)
        except apsw.Error as found:
            damage = found
    return error if damage == "ok" else StorageDamaged(f"{path}: the file is damaged: {damage}")


def explained(work: Callable[[apsw.Connection], T], connection: apsw.Connection, path: Path) -> T:
    """Run the work on the connection; raise its errors as Postroad's."""
    try:
        return work(connection)
    except (apsw.Error, *SIGNS_OF_DAMAGE) as error:
        raise_from(error, explain(error, connection, path))


def raise_from(error: BaseException, explained: Exception) -> NoReturn:
    """Raise the error as explained. One that is explained by itself keeps its own cause."""
    if explained is error:
        raise explained
    raise explained from error


def _is_full(error: apsw.Error | OSError, system_errno: int) -> bool:
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    # SQLite lengthens the log's index before it uses it, so it can only run out of room with SHMSIZE.
    return (
        isinstance(error, apsw.FullError)
        or getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_SHMSIZE
        or (isinstance(error, apsw.IOError) and system_errno in _NO_ROOM)
    )
