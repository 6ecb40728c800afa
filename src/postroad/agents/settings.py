"""How agents of one process are handled."""

from __future__ import annotations

from dataclasses import dataclass

from postroad.agents.rules import MAX_DELAY, check_seconds, check_whole
from postroad.errors import ConfigurationError
from postroad.queues.spec import MAX_VISIBILITY
from postroad.settings.environment import dispatch_delay_text
from postroad.streams.rules import check_name


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
    check_name(stream, field="stream")
    return AgentSettings(
        dispatch_delay=check_seconds(_delay(dispatch_delay), "DISPATCH_DELAY_SECONDS", 0, MAX_DELAY),
        retention=check_seconds(retention, "retention", 1, 31_536_000),
        max_receives=check_whole(max_receives, "max_receives", 1, 1_000, ConfigurationError),
        visibility=check_seconds(visibility, "visibility", 0, MAX_VISIBILITY),
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
