"""Names that the shell completes from the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from postroad.errors import PostroadError
from postroad.settings import data_path, load

if TYPE_CHECKING:
    from postroad.wiring import Backend


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
