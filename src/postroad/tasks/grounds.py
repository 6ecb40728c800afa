"""What tasks need of a backend, and for whom they act."""

from __future__ import annotations

from dataclasses import dataclass

from postroad.ports import Store as Ground
from postroad.settings import load

__all__ = ["Ground", "Party", "party"]


@dataclass(frozen=True, slots=True)
class Party:
    """The tenant and the app in whose name something is done."""

    tenant_id: str
    app: str


def party(tenant_id: str | None, app: str | None) -> Party:
    """Who was named, else who the settings name."""
    if tenant_id is not None and app is not None:
        return Party(tenant_id, app)
    settings = load()
    return Party(settings.tenant if tenant_id is None else tenant_id, settings.app if app is None else app)
