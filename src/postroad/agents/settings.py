"""How agents of one process are handled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from postroad.agents.rules import MAX_DELAY
from postroad.arguments import check, seconds_between, whole_number
from postroad.errors import ConfigurationError, InvalidName
from postroad.queues import MAX_VISIBILITY
from postroad.settings import dispatch_delay_text
from postroad.streams import Name


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Checked settings."""

    dispatch_delay: float = 0.0
    retention: float = 604_800.0
    max_receives: int = 5
    visibility: float = 30.0
    validate: bool = True
    stream: str = "agent-events"


def checked(
    *, dispatch_delay: float | None, retention: float, max_receives: int, visibility: float, validate: bool, stream: str
) -> AgentSettings:
    """The settings, or `ConfigurationError` naming the one at fault."""
    check(stream, Name, "stream", InvalidName)
    delay: Any = _delay(dispatch_delay)
    check(delay, seconds_between(0, MAX_DELAY), "DISPATCH_DELAY_SECONDS", ConfigurationError)
    check(retention, seconds_between(1, 31_536_000), "retention", ConfigurationError)
    check(max_receives, whole_number(1, 1_000), "max_receives", ConfigurationError)
    check(visibility, seconds_between(0, MAX_VISIBILITY), "visibility", ConfigurationError)
    return AgentSettings(
        dispatch_delay=float(delay),
        retention=float(retention),
        max_receives=max_receives,
        visibility=float(visibility),
        validate=bool(validate),
        stream=stream,
    )


def _delay(told: float | None) -> object:
    if told is not None:
        return told
    text = dispatch_delay_text()
    try:
        return float(text) if text else 0.0
    except ValueError:
        return text
