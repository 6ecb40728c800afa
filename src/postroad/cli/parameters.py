"""Durations, times and rates on the command line, and names that the shell completes from the data."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from postroad.errors import PostroadError
from postroad.settings import data_path, load

if TYPE_CHECKING:
    from postroad.wiring import Backend


_FORM = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


def duration(text: str) -> float:
    """Seconds from a number with or without a unit."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f'"{text}" is not a duration such as 30, 30s, 5m, 2h or 7d')
    seconds = float(match[1]) * _SECONDS[match[2]]
    return int(seconds) if seconds.is_integer() else seconds


def moment(text: str) -> datetime:
    """A time with its zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise typer.BadParameter(f'"{text}" is not a time with its zone, such as 2026-01-31T08:00:00Z')
    return found


def per_second(text: str) -> float:
    """A rate above zero."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise typer.BadParameter(f'"{text}" is not a number of messages per second above 0')
    return rate


def spoken(seconds: float | None) -> str:
    """Seconds, rounded down to the unit a person would use."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds / size)}{unit}"
    return f"{round(seconds, 1):g}s" if seconds < 10 else f"{int(seconds)}s"


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The queues whose names begin like this."""
    return _names(ctx, incomplete, lambda backend: backend.queues())


def topic_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The topics whose names begin like this."""
    return _names(ctx, incomplete, lambda backend: backend.topics())


def _names(ctx: typer.Context, incomplete: str, every: Callable[[Backend], list[str]]) -> list[str]:
    """Those that begin like this; none when the data cannot be read, for a shell must not be disturbed."""
    try:
        given = {name: ctx.params.get(name) or ctx.find_root().params.get(name) for name in ("url", "config")}
        url = load(flags={"url": given["url"]}, file=given["config"]).url
        path = data_path(url)
        if path is not None and not path.exists():
            return []
        from postroad.wiring import connect

        with connect(url) as backend:
            return [name for name in every(backend) if name.startswith(incomplete)]
    except PostroadError:
        return []
