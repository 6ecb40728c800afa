"""The audit of an operator's change: a record before it and one with its outcome after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from postroad.errors import ConfigurationError
from postroad.telemetry.text import legible, redact

_MAX_ERROR = 500


class Auditor(Protocol):
    """Keeps a record of who changed what."""

    def append(self, action: str, target: str, detail: Mapping[str, Any], *, actor: str | None = None) -> object: ...


@contextmanager
def recorded(
    log: Auditor | None, action: str, target: str, detail: Mapping[str, Any], *, actor: str | None = None
) -> Iterator[dict[str, Any]]:
    """Write `{action}.start`, let the block fill in the counts, write `{action}.end`, however the block ends.

    Raises:
        ConfigurationError: The start cannot be written, and nothing was changed; or the end cannot be, and all was.
    """
    if log is None:
        yield {}
        return
    log.append(f"{action}.start", target, detail, actor=actor)
    done: dict[str, Any] = {}
    try:
        yield done
    except BaseException as error:
        # What went wrong first is what the caller has to hear.
        with suppress(ConfigurationError):
            log.append(f"{action}.end", target, {**done, **_failure(error)}, actor=actor)
        raise
    try:
        log.append(f"{action}.end", target, done, actor=actor)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{action} of {target} is done ({done}), and its end could not be recorded: {error}",
            field=error.field,
            remedy="Make the audit file writable again; do not repeat the command for the record's sake.",
        ) from error


def _failure(error: BaseException) -> dict[str, Any]:
    text = legible(redact(f"{type(error).__name__}: {error}"))[:_MAX_ERROR]
    return {"interrupted": True, "error": text} if isinstance(error, KeyboardInterrupt) else {"error": text}
