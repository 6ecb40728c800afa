"""The error that all others are."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any, ClassVar, Final

_CREDENTIALS: Final = re.compile(
    r"""(?P<scheme>\b[a-z][a-z0-9+.-]{1,20}(?:://|%3A%2F%2F))    # also inside a query, where it may be encoded
    [^\s/'"&?]{1,200}(?P<at>@|%40)""",
    re.VERBOSE | re.IGNORECASE,
)


def without_credentials(text: str) -> str:
    """Return the text with user and password of every URL in it hidden."""
    return _CREDENTIALS.sub(r"\g<scheme>***\g<at>", text)


class PostroadError(Exception):
    """Something Postroad refuses or could not do. Its message shows no user and password of a URL."""

    slug: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    remedy: str = "See the log for the cause."

    def __init__(
        self, message: str, *, field: str | None = None, remedy: str | None = None, nearest: str | None = None
    ) -> None:
        self.message = without_credentials(message)
        super().__init__(self.message)
        self.field = field
        self.nearest = nearest
        """The name that was probably meant."""
        if remedy is not None:
            self.remedy = remedy
        if self.remedy:
            # Every traceback shows it.
            self.add_note(self.remedy)


class Conflict(PostroadError):
    """It exists already, and is not in the state or of the content that this needs."""

    slug = "conflict"
    status = 409
    remedy = "Look at it first; use another id for something new."


class NotFound(PostroadError):
    """There is nothing of this id."""

    slug = "not-found"
    status = 404
    remedy = "Name an id that was submitted under this tenant."


def describe(error: BaseException) -> str:
    """Return the error in one line, with the place that raised it: `ValueError: no such order [orders.py:place]`."""
    frames = list(traceback.walk_tb(error.__traceback__))
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if not frames:
        return text
    code = frames[-1][0].f_code
    # The name alone: the path differs from machine to machine, and the same failure would be two.
    return f"{text} [{Path(code.co_filename).name}:{code.co_name}]"


class ConfigurationError(PostroadError):
    """A URL, setting or specification that cannot work."""

    slug = "configuration"
    status = 400
    remedy = "Correct the value that the message names; `postroad config check` validates without starting."


class AmbiguousSource(ConfigurationError):
    """Nothing tells where a dead letter goes back to."""

    slug = "ambiguous-source"
    remedy = "Name the destination with to=... or `--to QUEUE`."


class SchemaMismatch(ConfigurationError):
    """The file was made by another version of Postroad."""

    slug = "schema-mismatch"
    remedy = "Open it with the version of Postroad that made it, or upgrade this one."


class InvalidInput(PostroadError):
    """An argument that is refused before anything changes."""

    slug = "invalid-input"
    status = 400
    remedy = "Correct the argument that the message names; nothing was changed."


class InvalidName(InvalidInput):
    """A name that AWS would refuse."""

    slug = "invalid-name"
    remedy = "Use 1 to 80 letters, digits, '-' or '_', with '.fifo' at the end exactly when it is FIFO."


class InvalidMessage(InvalidInput):
    """A message that cannot be sent or read."""

    slug = "invalid-message"
    remedy = "Correct the field that the message names; nothing was sent."


class MessageTooLarge(InvalidMessage):
    """A message above the limit of its queue or topic."""

    slug = "message-too-large"
    status = 413
    remedy = "Send less, or let large bodies travel by reference (overflow='blobs')."


class UnknownEventType(PostroadError):
    """A name that the registry does not know; names are looked up, never imported."""

    slug = "unknown-event-type"
    status = 400
    remedy = "Register the class with @event or registry.register before it is read."


class RemoteError(PostroadError):
    """An exception that another process raised and whose class is not known here."""

    slug = "remote-error"
    remedy = "Register the exception's class to receive it as itself."

    def __init__(self, type_name: str, message: str, args: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.type_name = type_name
        self.remote_args = args

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (RemoteError, (self.type_name, self.message, self.remote_args))


class InvalidSnapshot(InvalidInput):
    """A text that is not the snapshot of a session."""

    slug = "invalid-snapshot"
    remedy = "Pass what `session.snapshot().to_json()` returned, unchanged; the session is as it was."
