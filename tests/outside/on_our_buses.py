"""A plugin of pytest that gives weakincentives' own tests our buses in the place of its bus.

Loaded in its environment, before its tests import anything; `POSTROAD_OUTSIDE` names the bus: `local` or `topic`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import count

import pytest
from weakincentives.runtime import events

import postroad
from postroad import bus

_BUS = os.environ.get("POSTROAD_OUTSIDE", "local")
_LOG_LINE = "asks for the log line of its own bus; ours returns the failure, and the caller logs it"
_CLASS = "asks whether the default bus is of the class in its place; a topic bus is made by backend.bus()"
EXCLUDED = {
    "local": {"tests/test_events.py::test_in_process_bus_isolates_handler_exceptions": _LOG_LINE},
    "topic": {
        "tests/test_events.py::test_in_process_bus_isolates_handler_exceptions": _LOG_LINE,
        "tests/test_session.py::test_session_instantiates_default_bus_when_none_provided": _CLASS,
    },
}
"""Every test that is left out, by bus, with the reason."""


def _topic_buses() -> Callable[[], bus.TopicEventBus]:
    backend, numbers = postroad.connect("memory://"), count()
    return lambda: backend.bus(f"outside-{next(numbers)}")


def _replace(name: str, ours: object) -> None:
    """Put ours wherever the package has its own under any name."""
    theirs = getattr(events, name)
    modules = [module for path, module in sys.modules.items() if path.partition(".")[0] == "weakincentives"]
    for module in modules:
        for attribute in [each for each, value in vars(module).items() if value is theirs]:
            setattr(module, attribute, ours)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is excluded; a name that fits no test is an error, so that the list stays true."""
    excluded = EXCLUDED[_BUS]
    if unknown := set(excluded) - {item.nodeid for item in items}:
        raise pytest.UsageError(f"excluded, but not there: {', '.join(sorted(unknown))}")
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in excluded])
    items[:] = [item for item in items if item.nodeid not in excluded]


_replace("InProcessEventBus", bus.InProcessEventBus if _BUS == "local" else _topic_buses())
_replace("HandlerFailure", bus.HandlerFailure)
_replace("PublishResult", bus.PublishResult)
