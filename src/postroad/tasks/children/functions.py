"""The functions of tasks in a new process: found where the operator said, never where a message did, and called."""

from __future__ import annotations

import importlib
import inspect
import json
import multiprocessing.spawn
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import msgspec

from postroad.errors import ConfigurationError, describe
from postroad.events import checked_bytes
from postroad.tasks.children.wire import ACTIVITY, FAILURE, RESULT, Order, Plan, TaskEntry
from postroad.tasks.failures import ErrorClass, NonRetryable, Retryable, classify_exception
from postroad.tasks.registry import TaskContext, TaskDefinition, TaskFunction, TaskRegistry, default_tasks

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


_MAIN = "__main__"
_OPTIONS = ("timeout", "max_attempts", "memory_limit", "pass_env", "fresh")


def entry_of(definition: TaskDefinition) -> TaskEntry:
    """The task as another process finds it."""
    options: dict[str, Any] = {name: getattr(definition, name) for name in _OPTIONS}
    function = definition.function
    if function is None:
        return TaskEntry(name=definition.name, command=definition.command, **options)
    if "<" in function.__qualname__:
        raise ConfigurationError(
            f"task {definition.name!r}: {function.__qualname__!r} cannot be found from another process",
            field="name",
            remedy="Define the function at the top of a module, so that the children of a worker can import it.",
        )
    return TaskEntry(name=definition.name, module=function.__module__, qualname=function.__qualname__, **options)


def main_module(entries: Iterable[TaskEntry]) -> dict[str, str]:
    """How the main program is found again, when a task is defined there."""
    if not any(entry.module == _MAIN for entry in entries):
        return {}
    main = sys.modules[_MAIN]
    if (spec := getattr(main, "__spec__", None)) is not None:
        return {"init_main_from_name": spec.name}
    if (path := getattr(main, "__file__", None)) is not None:
        return {"init_main_from_path": os.path.abspath(path)}  # noqa: PTH100  # as it is, links not followed
    raise ConfigurationError("a task of an interactive session cannot be run by children", field="registry")


def import_path() -> tuple[str, ...]:
    """This process's `sys.path`, readable from every directory."""
    return tuple(os.path.abspath(place) for place in sys.path)  # noqa: PTH100  # as it is, links not followed


def find_tasks(plan: Plan) -> TaskRegistry:
    """Import what the plan names; a task in the main program is found without running what guards its start."""
    if plan.main:
        multiprocessing.spawn.prepare(plan.main)
    for name in plan.imports:
        importlib.import_module(name)
    found = TaskRegistry()
    for entry in plan.tasks:
        _register(found, entry)
    if plan.imports:
        for definition in default_tasks.definitions():
            if definition.name not in found.names():
                _register(found, entry_of(definition), definition)
    return found


def _register(registry: TaskRegistry, entry: TaskEntry, known: TaskDefinition | None = None) -> None:
    options = {name: getattr(entry, name) for name in _OPTIONS}
    if entry.command is not None:
        registry.command(entry.name, entry.command, **options)
        return
    function = known.function if known is not None else _resolve(entry)
    assert function is not None
    registry.register(function, entry.name, **options)


def _resolve(entry: TaskEntry) -> Any:
    found: Any = importlib.import_module(entry.module)
    for part in entry.qualname.split("."):
        found = getattr(found, part)
    return found


def decode_plan(data: bytes) -> Plan:
    """The plan as the worker wrote it."""
    return msgspec.msgpack.decode(data, type=Plan)
