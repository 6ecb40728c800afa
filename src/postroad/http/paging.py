"""Pages: a part of a list, and the sealed cursor to the next part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from postroad.http.requests import ApiRequest

Entry = TypeVar("Entry")


def page(
    request: ApiRequest,
    of: str,
    entries: Sequence[Entry],
    limit: int,
    *,
    position: Callable[[Entry], str],
    row: Callable[[Entry], Any | None],
) -> dict[str, Any]:
    """The first `limit` entries as rows (None is left out), with a cursor when more follow."""
    shown = entries[:limit]
    rows = [document for entry in shown if (document := row(entry)) is not None]
    more = len(entries) > limit
    return {"items": rows, "next_cursor": request.context.cursors.seal(of, position(shown[-1])) if more else None}
