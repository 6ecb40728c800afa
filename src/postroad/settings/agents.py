"""What the environment tells agents, under the names of the functions that AWS runs."""

from __future__ import annotations

import os
from collections.abc import Mapping

from postroad.errors import ConfigurationError
from postroad.settings.keys import PREFIX

_MOST = 1_000_000_000
_FUNCTION_VARIABLES = (
    *("EVENTS_STREAM", "AGENTS_TABLE", "SUBSCRIBERS_TABLE", "SUBSCRIBER_EVENTS_TABLE", "DISPATCH_DELAY_SECONDS"),
)


def dispatch_delay_text(env: Mapping[str, str] | None = None) -> str | None:
    """The hold-back window as it was told."""
    return _environment(env).get("DISPATCH_DELAY_SECONDS") or None


def events_stream(env: Mapping[str, str] | None = None) -> str | None:
    """The stream that agents publish to, when it was told."""
    return _environment(env).get("EVENTS_STREAM") or None


def table_name(variable: str | None, default: str, env: Mapping[str, str] | None = None) -> str:
    """A table's name: what the variable says, else its own."""
    return default if variable is None else _environment(env).get(variable) or default


def function_environment(env: Mapping[str, str] | None = None) -> tuple[str, tuple[str, ...]]:
    """The backend that a function on AWS opens, and all else that its environment says about agents."""
    found = _environment(env)
    url = found.get(PREFIX + "URL") or f"aws://{found.get('AWS_REGION', '')}"
    return url, tuple(found.get(name, "") for name in _FUNCTION_VARIABLES)


def agent_rate(env: Mapping[str, str] | None = None) -> int:
    """Events a second that one agent may publish by HTTP; 0 for any number."""
    return _whole("AGENT_RATE", 1_000, env)


def agent_polls(env: Mapping[str, str] | None = None) -> int:
    """Polls and streams that may wait for one agent."""
    return _whole("AGENT_POLLS", 8, env)


def _whole(name: str, default: int, env: Mapping[str, str] | None) -> int:
    variable = PREFIX + name
    text = _environment(env).get(variable)
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or int(text) > _MOST:
        raise ConfigurationError(f"variable {variable}: {text!r} is not a whole number from 0 on", field=variable)
    return int(text)


def _environment(env: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if env is None else env
