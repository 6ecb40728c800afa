"""Calls to AWS whose answer may be that there is no such resource."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from postroad.connections import translated
from postroad.errors import PostroadError


class _Absent(PostroadError):
    """There is no such resource; never leaves this file."""


def ask(what: str, operation: Callable[..., Any], /, *missing: str, **parameters: Any) -> Any:
    """Return the answer of AWS, or None if it is one of the error codes `missing`."""
    try:
        with translated(what, dict.fromkeys(missing, _Absent)):
            return operation(**parameters)
    except _Absent:
        return None


def pages(what: str, operation: Callable[..., Any], /, *missing: str, **parameters: Any) -> Iterator[Any]:
    """Yield the pages of an answer of AWS, which end at one of the error codes `missing`."""
    while (page := ask(what, operation, *missing, **parameters)) is not None:
        yield page
        name = next((name for name in ("NextToken", "PaginationToken") if page.get(name)), None)
        if name is None:
            return
        parameters[name] = page[name]


def tags_of(answer: Any, key: str = "Tags") -> dict[str, str]:
    """Return the tags in an answer of AWS, in the form that most of its services use."""
    return {entry["Key"]: entry["Value"] for entry in (answer or {}).get(key) or ()}
