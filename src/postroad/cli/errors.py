"""How the CLI fails: an exit code, at most three lines, and never a traceback nobody asked for."""

from __future__ import annotations

import sys

import typer

from postroad.cli.output import write, write_json
from postroad.errors import (
    ConfigurationError,
    InvalidInput,
    NotSupported,
    PostroadError,
    QueueNotFound,
    StorageFull,
    StreamNotFound,
    TopicNotFound,
    TransportError,
    UnknownEventType,
)
from postroad.settings import debugging
from postroad.telemetry import legible

ANSWER_IS_NO = 1
WRONG_USAGE = 2
NOT_REACHABLE = 3
INTERRUPTED = 130
_WRONG_USAGE = (
    *(ConfigurationError, InvalidInput, NotSupported, UnknownEventType),
    *(QueueNotFound, TopicNotFound, StreamNotFound),
)


def report(error: Exception, *, as_json: bool) -> int:
    """Say on stderr what went wrong and return the exit code."""
    if debugging():
        import traceback

        traceback.print_exception(error)
    if isinstance(error, typer.Abort):
        write("interrupted", sys.stderr)
        return INTERRUPTED
    known = _as_postroad_error(error)
    _say(known, as_json=as_json)
    return exit_code(known)


def exit_code(error: PostroadError) -> int:
    """1 the answer is no, 2 wrong usage, input or configuration, 3 something needed is not reachable."""
    if isinstance(error, _WRONG_USAGE):
        return WRONG_USAGE
    return NOT_REACHABLE if isinstance(error, TransportError | StorageFull) else ANSWER_IS_NO


def _say(error: PostroadError, *, as_json: bool) -> None:
    if as_json:
        from postroad.views import problem

        write_json(problem(error), sys.stderr)
        return
    lines = [f"error: {_one_line(str(error))}"]
    if error.nearest is not None:
        lines.append(f'did you mean "{legible(error.nearest)}"?')
    lines.append(_one_line(error.remedy))
    write("\n".join(lines), sys.stderr)


def _one_line(text: str) -> str:
    return legible(" ".join(text.split()))


def _as_postroad_error(error: Exception) -> PostroadError:
    if isinstance(error, PostroadError):
        return error
    if isinstance(error, typer.TyperException):
        return _usage(error)
    if isinstance(error, OSError):
        return PostroadError(f"{type(error).__name__}: {error}", remedy="Check the file, the disk and the permissions.")
    return PostroadError(
        f"unexpected {type(error).__name__}", remedy="POSTROAD_DEBUG=1 shows where; please report it with that text."
    )


def _usage(error: typer.TyperException) -> InvalidInput:
    """What the command line's parser refused, in our own words."""
    context = getattr(error, "ctx", None)
    parameter = getattr(error, "param", None)
    possibilities = sorted(getattr(error, "possibilities", None) or [])
    path = "postroad" if context is None else context.command_path
    message = error.message if possibilities else error.format_message()
    return InvalidInput(
        message[:1].lower() + message[1:],
        field=None if parameter is None else parameter.name,
        nearest=possibilities[0] if possibilities else None,
        remedy=f"`{path} --help` shows how it is used.",
    )
