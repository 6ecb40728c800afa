"""Values of weakincentives' events, and a registry that knows them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import weakincentives.runtime.events as events
from weakincentives.adapters.core import PromptResponse
from weakincentives.prompt.tool_result import ToolResult

from postroad import EventRegistry

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
SESSION = UUID(int=1)


@dataclass(frozen=True)
class Finding:
    """A user's own value."""

    text: str


@dataclass(frozen=True)
class Stranger:
    """A value that nobody registers."""

    text: str


TELEMETRY = (
    events.PromptRendered("ns", "key", "review", "openai", SESSION, (Finding("in"),), "Say", MOMENT, None, UUID(int=2)),
    events.ToolInvoked(
        "review",
        "openai",
        "search",
        Finding("p"),
        ToolResult("found", Finding("tool")),
        SESSION,
        MOMENT,
        events.TokenUsage(1, 2),
        "found",
        "call-1",
        UUID(int=3),
    ),
    events.PromptExecuted(
        "review",
        "openai",
        PromptResponse("review", "text", [Finding("a"), Finding("b")]),
        SESSION,
        MOMENT,
        events.TokenUsage(1, 2, 3),
        UUID(int=4),
    ),
)
UNREGISTERED = events.ToolInvoked(
    "review", "openai", "search", Stranger("p"), {"files": ["main.py"]}, SESSION, MOMENT, event_id=UUID(int=5)
)


def registry() -> EventRegistry:
    """A registry as a user of weakincentives sets it up."""
    made = EventRegistry()
    made.register_module(events)
    for cls in (PromptResponse, ToolResult, Finding):
        made.register(cls)
    return made
