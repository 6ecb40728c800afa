"""A record before an operator's change and one with its outcome after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from postroad.errors import ConfigurationError
from postroad.queues.markers import legible


class Auditor(Protocol):
    """Keeps a record of who changed what."""

    def append(self, action: str, target: str, detail: Mapping[str, Any], *, actor: str | None = None) -> object: ...


@contextmanager
def recorded(
    log: Auditor | None, action: str, target: str, detail: Mapping[str, Any], *, actor: str | None = None
) -> Iterator[dict[str, Any]]:
    """Write the start, let the block fill in the counts, write the end. Without a start nothing is changed."""
    if log is None:
        yield {}
        return
    log.append(f"{action}.start", target, detail, actor=actor)
    done: dict[str, Any] = {}
    try:
        yield done
    except BaseException as error:
        text = legible(f"{type(error).__name__}: {error}")
        # What went wrong first is what the caller has to hear.
        with suppress(ConfigurationError):
            log.append(f"{action}.end", target, {**done, "error": text}, actor=actor)
        raise
    try:
        log.append(f"{action}.end", target, done, actor=actor)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{action} of {target} is done ({done}), and its end could not be recorded: {error}", field=error.field,
            remedy="Make the audit file writable again; do not repeat the command for the record's sake.",
        ) from error  # fmt: skip
