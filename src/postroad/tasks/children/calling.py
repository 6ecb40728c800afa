"""Calling a task's function inside its child, and putting what comes of it into words."""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import msgspec

from postroad.errors.root import describe
from postroad.events.strict import checked_bytes
from postroad.tasks.children.wire import ACTIVITY, FAILURE, RESULT, Order
from postroad.tasks.classify import ErrorClass, classify_exception
from postroad.tasks.context import TaskContext
from postroad.tasks.definitions import TaskFunction
from postroad.tasks.failures import NonRetryable, Retryable

Say = Callable[[bytes], None]
# Made beforehand: a child that is out of memory may not be able to make it.
OUT_OF_MEMORY = FAILURE + json.dumps({"error": "MemoryError", "cause": "oom"}).encode()
_ERROR_CHARACTERS = 2_000
_LINE_CHARACTERS = 500
_TRACEBACK_LINES = 200


class _Document(msgspec.Struct):
    input: dict[str, Any] = {}
    dependencyOutputs: dict[str, Any] = {}


def call(function: TaskFunction, order: Order, say: Say, *, max_output_bytes: int) -> bytes:
    """Run the task; its last word is a result or a failure."""
    document = msgspec.json.decode(order.document, type=_Document)
    context = _context(order, document, say)
    try:
        return _result(_called(function, document.input, context), context.counts, max_output_bytes)
    except MemoryError:
        return OUT_OF_MEMORY
    except Exception as error:
        return failed(error)


def failed(error: BaseException) -> bytes:
    """The last word of a child whose task failed or could not even begin."""
    lines = "".join(traceback.format_exception(type(error), error, _own_frames(error))).splitlines()
    return _failure(_text(error), classify_exception(error), located=describe(error), lines=lines[-_TRACEBACK_LINES:])


def _own_frames(error: BaseException) -> TracebackType | None:
    """The frames of the task itself, without those that called it."""
    own = frame = error.__traceback__
    while frame is not None:
        own = frame.tb_next if frame.tb_frame.f_code.co_filename == __file__ else own
        frame = frame.tb_next
    return own


def _called(function: TaskFunction, input: dict[str, Any], context: TaskContext) -> Any:
    """What the task returns; a coroutine is run to its end on a loop of its own."""
    found = function(input, context)
    if not inspect.isawaitable(found):
        return found
    # A zygote that found an async task has imported it; the children of others do not pay for it.
    import asyncio

    return asyncio.run(_awaited(found))


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found


def _context(order: Order, document: _Document, say: Say) -> TaskContext:
    return TaskContext(
        request_id=order.request_id,
        name=order.name,
        tenant_id=order.tenant_id,
        run=order.run,
        attempt=order.attempt,
        token=order.token,
        deadline=datetime.fromtimestamp(order.deadline, UTC),
        job_id=order.job_id,
        task_id=order.task_id,
        dependency_outputs=document.dependencyOutputs,
        tell=lambda activity: say(ACTIVITY + json.dumps(activity).encode()),
    )


def _result(output: Any, usage: dict[str, int], max_output_bytes: int) -> bytes:
    try:
        data = json.dumps(output, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
        checked_bytes(b"[[[[" + data + b"]]]]", len(data) + 8)
    except (TypeError, ValueError, RecursionError) as error:
        return _invalid(f"the result cannot be written as JSON: {error}")
    except Exception as error:
        return _invalid(f"the result cannot be recorded: {error}")
    if len(data) > max_output_bytes:
        return _invalid(f"the result has {len(data):,} bytes, above the limit of {max_output_bytes:,}")
    return RESULT + json.dumps({"usage": usage}).encode()[:-1] + b',"output":' + data + b"}"


def _invalid(why: str) -> bytes:
    return _failure(why, ErrorClass("validation", False))


def _failure(text: str, found: ErrorClass, *, located: str | None = None, lines: Sequence[str] = ()) -> bytes:
    word = {
        "error": _clean(text, _ERROR_CHARACTERS),
        "category": found.category,
        "retryable": found.retryable,
        "located": None if located is None else _clean(located, _ERROR_CHARACTERS),
        "traceback": [_clean(line, _LINE_CHARACTERS) for line in lines],
    }
    return FAILURE + json.dumps(word).encode()


def _clean(text: str, most: int) -> str:
    """The text as UTF-8 can hold it: a lone surrogate must not keep a failure from being told."""
    return text[:most].encode(errors="replace").decode()


def _text(error: BaseException) -> str:
    message = str(error)
    if message and isinstance(error, Retryable | NonRetryable):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
