"""Calls to AWS whose answer may be that there is no such thing, and what every kind of resource can do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from postroad.connections import translated
from postroad.errors import PostroadError
from postroad.topology.forms import Form


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


class ResourceKind(Protocol):
    """Reads, makes, changes and removes the resources of one kind."""

    def read(self, form: Form) -> dict[str, Any] | None:
        """The settings as they are, without those that are not told; None when there is no such resource."""
        ...

    def create(self, form: Form) -> None:
        """Make the resource."""
        ...

    def update(self, form: Form, fields: Collection[str]) -> None:
        """Change these fields and no other."""
        ...

    def delete(self, name: str) -> None:
        """Remove the resource."""
        ...
