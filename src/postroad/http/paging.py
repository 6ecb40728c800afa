"""Pages: a part of a list, and the sealed cursor to the next part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from postroad.http.requests import ApiRequest

Entry = TypeVar("Entry")
Page = TypeVar("Page")


def page(
    request: ApiRequest,
    into: Callable[[list[Any], str | None], Page],
    of: str,
    entries: Sequence[Entry],
    limit: int,
    *,
    position: Callable[[Entry], str],
    row: Callable[[Entry], Any | None],
) -> Page:
    """The first `limit` entries as rows (None is left out), with a cursor when more follow."""
    shown = entries[:limit]
    rows = [document for entry in shown if (document := row(entry)) is not None]
    more = len(entries) > limit
    return into(rows, request.context.cursors.seal(of, position(shown[-1])) if more else None)
