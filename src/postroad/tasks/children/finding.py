"""Finding tasks in a new process: modules are imported because the operator named them, never because a message did."""

from __future__ import annotations

import importlib
import multiprocessing.spawn
import os
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from postroad.errors import ConfigurationError
from postroad.tasks.children.wire import Plan, TaskEntry
from postroad.tasks.definitions import TaskDefinition
from postroad.tasks.registry import TaskRegistry, default_tasks

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
            f"task {definition.name!r}: {function.__qualname__!r} cannot be found from another process", field="name",
            remedy="Define the function at the top of a module, so that the children of a worker can import it.",
        )  # fmt: skip
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
