"""Files that only their owner may read: tokens, hashes and keys."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from postroad.errors import ConfigurationError


def write_private(path: Path, data: bytes) -> None:
    """Replace the file in one step; whoever reads it sees the old bytes or the new ones, and nobody else sees any."""
    # mkstemp opens with mode 0600 whatever the umask is.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


def read_secret(path: Path) -> str:
    """The secret that the file holds, or `ConfigurationError` when it cannot be read or holds none."""
    try:
        secret = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path}: no secret can be read from it: {error}", remedy="Name a readable file that holds one line."
        ) from error
    if not secret:
        raise ConfigurationError(f"{path}: is empty", remedy="Write the secret into it, or remove it to get a new one.")
    return secret


def kept_secret(path: Path, prefix: str = "") -> str:
    """The secret of this file, made at first use."""
    with locked(path.parent):
        if not path.exists():
            write_private(path, f"{prefix}{secrets.token_urlsafe(32)}\n".encode())
    return read_secret(path)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes of this machine from changing private files of the folder meanwhile."""
    # The folder itself is locked: a lock file of its own would stay behind, and the data file is not ours to lock.
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
