"""Calls to AWS whose answer may be that there is no such thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from postroad.connections.aws_errors import translated
from postroad.errors import PostroadError


class _Absent(PostroadError):
    """There is none; never leaves this file."""


def ask(what: str, operation: Callable[..., Any], /, *missing: str, **parameters: Any) -> Any:
    """The answer of AWS; None when it says one of the codes `missing`."""
    try:
        with translated(what, dict.fromkeys(missing, _Absent)):
            return operation(**parameters)
    except _Absent:
        return None


def unpaired(answer: Any, key: str = "Tags") -> dict[str, str]:
    """Tags as most services of AWS give them."""
    entries: Iterable[Mapping[str, str]] = (answer or {}).get(key) or ()
    return {entry["Key"]: entry["Value"] for entry in entries}
