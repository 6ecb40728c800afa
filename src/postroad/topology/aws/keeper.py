"""What every kind of resource on AWS can do."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from postroad.topology.forms import Form


class Keeper(Protocol):
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
