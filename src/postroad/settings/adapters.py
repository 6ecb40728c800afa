"""Adapters of third parties: the entry points `postroad.adapters`, each under the scheme of its addresses."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

_GROUP = "postroad.adapters"


@cache
def adapter(scheme: str) -> EntryPoint | None:
    """The adapter whose addresses have this scheme; None when nobody installed one."""
    return next(iter(entry_points(group=_GROUP, name=scheme)), None)


def adapter_schemes() -> list[str]:
    """The schemes of all adapters that are installed, sorted."""
    return sorted(entry_points(group=_GROUP).names)
