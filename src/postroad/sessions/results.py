"""The values that telemetry brings along: what a tool gave back, what a prompt put out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from postroad.sessions.telemetry import PromptExecuted, ToolInvoked


def values_in(event: object) -> Iterator[tuple[object, str]]:
    """Each dataclass in the result of a telemetry event, with its place in it."""
    if isinstance(event, ToolInvoked):
        found = getattr(event.result, "value", None)
    elif isinstance(event, PromptExecuted):
        found = getattr(event.result, "output", None)
    else:
        return
    for index, value in enumerate(found if isinstance(found, list | tuple) else [found]):
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield value, f" [{index}]"
