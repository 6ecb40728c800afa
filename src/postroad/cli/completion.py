"""Names that the shell completes from the data."""

from __future__ import annotations

import typer

from postroad.errors import PostroadError
from postroad.settings import data_path, load


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The queues whose names begin like this; none when the data cannot be read, for a shell must not be disturbed."""
    try:
        given = {name: ctx.params.get(name) or ctx.find_root().params.get(name) for name in ("url", "config")}
        url = load(flags={"url": given["url"]}, file=given["config"]).url
        path = data_path(url)
        if path is not None and not path.exists():
            return []
        from postroad.wiring import connect

        with connect(url) as backend:
            return [name for name in backend.queues() if name.startswith(incomplete)]
    except PostroadError:
        return []
