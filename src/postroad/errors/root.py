"""The root of all errors, and what fails on the way to other processes."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from itertools import islice
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
    """The base of every error that Postroad raises. Its message hides the user and password of URLs.

    Args:
        message: What happened.
        field: The argument or field at fault, if there is one.
        remedy: What to do, instead of the text of the class.
        nearest: The existing name that was probably meant.
    """

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
        if remedy is not None:
            self.remedy = remedy
        if self.remedy:
            # Every traceback shows it.
            self.add_note(self.remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors take other arguments than `args`: a copy gets what the error holds instead.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(cls: type[PostroadError], args: tuple[Any, ...], fields: dict[str, Any]) -> PostroadError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(fields)
    return error


class Conflict(PostroadError):
    """The object exists already, with a state or content that does not allow this."""

    status = 409
    remedy = "Look at the existing one first; use another id for something new."


class NotFound(PostroadError):
    """Nothing has this name or id."""

    status = 404
    remedy = "Name an id that was submitted under this tenant."


_NAMED_MEMBERS: Final = 3


def text_of(error: BaseException) -> str:
    """Return `str(error)`, also of an exception of the user's whose `__str__` itself fails.

    A group names its first members, each with the first line of its text: it says nothing about its cause by itself.
    """
    try:
        text = str(error)
    except Exception as why:
        return f"(its text cannot be shown: __str__ raises {type(why).__name__})"
    if not isinstance(error, BaseExceptionGroup):
        return text
    # Whoever shows the text removes secrets and bounds its length; a secret that was cut here would not be recognised.
    members = (named(member).partition("\n")[0] for member in islice(_members(error), _NAMED_MEMBERS))
    return f"{text}: {'; '.join(members)}"


def _members(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the exceptions of a group and of the groups in it, in their order."""
    waiting: list[BaseException] = [group]
    while waiting:
        if isinstance(each := waiting.pop(), BaseExceptionGroup):
            waiting += reversed(each.exceptions)
        else:
            yield each


def named(error: BaseException) -> str:
    """Return the class of the error and its text, if it has one."""
    text, name = text_of(error), type(error).__name__
    return f"{name}: {text}" if text else name


def describe(error: BaseException) -> str:
    """Return the error in one line, with the place that raised it: `ValueError: no such order [orders.py:place]`."""
    frames = list(traceback.walk_tb(error.__traceback__))
    text = named(error)
    if not frames:
        return text
    code = frames[-1][0].f_code
    # The name alone: the path differs from machine to machine, and the same failure would be two.
    return f"{text} [{Path(code.co_filename).name}:{code.co_name}]"


_IMPORTERS: Final = ("importlib", "multiprocessing.spawn", "postroad.", "runpy")


def describe_import(error: BaseException) -> str:
    """Return why an import failed, with the line of the user's code: `KeyError: 'DATABASE' [shop.py, line 3]`."""
    text = f"{type(error).__name__}: {text_of(error)}"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if not file.startswith("<") and not module.startswith(_IMPORTERS):
            return f"{text} [{Path(file).name}, line {line}]"
    return text


class ConfigurationError(PostroadError):
    """A URL, setting or specification that cannot work."""

    status = 400
    remedy = "Correct the value that the message names; `postroad config check` validates without starting."


class AmbiguousSource(ConfigurationError):
    """It is not known which queue a dead letter came from."""

    remedy = "Name the destination with to=... or `--to QUEUE`."


class SchemaMismatch(ConfigurationError):
    """The file was made by another version of Postroad."""

    remedy = "Open it with the version of Postroad that made it, or upgrade this one."


class InvalidInput(PostroadError):
    """An argument that is refused before anything changes."""

    status = 400
    remedy = "Correct the argument that the message names; nothing was changed."


class InvalidName(InvalidInput):
    """A name that AWS would refuse."""

    remedy = "Use 1 to 80 letters, digits, '-' or '_', with '.fifo' at the end exactly when it is FIFO."


class InvalidMessage(InvalidInput):
    """A message that cannot be sent or read."""

    remedy = "Correct the field that the message names; nothing was sent."


class MessageTooLarge(InvalidMessage):
    """A message above the limit of its queue or topic."""

    status = 413
    remedy = "Send less, or let large bodies travel by reference (overflow='blobs')."


class UnknownEventType(PostroadError):
    """A name that the registry does not know; names are looked up, never imported."""

    status = 400
    remedy = "Register the class with @event or registry.register before it is read."


class RemoteError(PostroadError):
    """An exception that another process raised and whose class is not known here.

    Args:
        type_name: The name of its class.
        message: Its text.
        args: Its arguments, as far as JSON holds them.
    """

    slug = "remote-error"
    remedy = "Register the exception's class to receive it as itself."

    def __init__(self, type_name: str, message: str, args: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.type_name = type_name
        self.remote_args = args

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"


class InvalidSnapshot(InvalidInput):
    """A text that is not the snapshot of a session."""

    remedy = "Pass what `session.snapshot().to_json()` returned, unchanged; the session is as it was."


class TransportError(PostroadError):
    """The driver or the network failed."""

    status = 503
    remedy = "Try again; if it persists, check the address, the network and the credentials."


class Unavailable(TransportError):
    """The store could not be reached or refused the call, which had no effect."""


class NotPermitted(Unavailable):
    """The credentials do not allow the call; trying again does not help."""

    remedy = "Give these credentials the permission that the message names, or renew them."


class Throttled(Unavailable):
    """The service accepts no more calls at this rate; the call had no effect."""

    remedy = "Send less, or wait; background senders retry by themselves."


class CircuitOpenError(Unavailable):
    """The call was not tried, because too many earlier calls failed.

    Args:
        message: What was not tried.
        retry_after: Seconds after which the next call is tried.
    """

    remedy = "Publish again after `retry_after` seconds, and look for the cause in the earlier failures."

    def __init__(self, message: str = "the circuit breaker is open", *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OutcomeUnknown(TransportError):
    """The call was cut off and may have taken effect."""

    remedy = "Repeat the call with the same id: a repetition is recognised."


class PublishFailed(TransportError):
    """A bus could not send an event to other processes; the cause is the driver's error."""

    remedy = "Publish the event again; an event that carries an id keeps it."


class OutOfOrder(PublishFailed):
    """The event was not sent again, because a later event of its group was already sent."""

    status = 409
    remedy = "Decide whether the event may arrive late; if so, publish it again on its own."


class NotSent(PublishFailed):
    """The event was not sent, because an earlier event of its group failed."""

    status = 409
    remedy = "Publish the failed event again first, then this one."


class DuplicateInProgress(PostroadError):
    """Another copy of the event is being handled; this copy is needed if that one fails."""

    status = 409
    remedy = "Let the transport deliver it again; it is ignored if the first copy succeeded."


class PublishError(PostroadError):
    """A message could not be published."""

    status = 503
    remedy = "Publish again under the same event id."


class RowRejected(PublishError):
    """This message can never be published."""

    status = 400
    remedy = "Correct or skip the message; repeating it does not help."


class TargetUnavailable(PublishError):
    """The target is at fault, not the message.

    Args:
        message: What the target answered.
        retry_after: Seconds after which to try again, if the target said so.
    """

    remedy = "Repair the target (existence, permissions, throttling); publishing resumes by itself."

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
