"""Calling a task's function inside its child, and putting what comes of it into words."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

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


class _Document(msgspec.Struct):
    input: dict[str, Any] = {}
    dependencyOutputs: dict[str, Any] = {}


def call(function: TaskFunction, order: Order, say: Say, *, max_output_bytes: int) -> bytes:
    """Run the task; its last word is a result or a failure."""
    document = msgspec.json.decode(order.document, type=_Document)
    context = _context(order, document, say)
    try:
        return _result(function(document.input, context), context.counts, max_output_bytes)
    except MemoryError:
        return OUT_OF_MEMORY
    except Exception as error:
        return _failure(_text(error), classify_exception(error))


def failed(error: BaseException) -> bytes:
    """The last word of a child that could not even begin."""
    return _failure(_text(error), classify_exception(error))


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


def _failure(text: str, found: ErrorClass) -> bytes:
    clean = text[:_ERROR_CHARACTERS].encode(errors="replace").decode()
    return FAILURE + json.dumps({"error": clean, "category": found.category, "retryable": found.retryable}).encode()


def _text(error: BaseException) -> str:
    message = str(error)
    if message and isinstance(error, Retryable | NonRetryable):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
