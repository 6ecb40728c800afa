"""What is refused before anything changes: settings, arguments, messages."""

from __future__ import annotations

from typing import Any

from postroad.errors.root import PostroadError


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
