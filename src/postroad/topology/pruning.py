"""What must stay although nobody declares it any more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from postroad.topology.site import Stray


def keep_dead_letters(strays: Sequence[Stray], sources: Callable[[str], Collection[str]]) -> list[Stray]:
    """The strays, of which a queue stays while one that stays has its dead letters there; `sources` tells which do."""
    asked = {stray.key[1]: sorted(sources(stray.key[1])) for stray in strays if _goes(stray)}
    reasons: dict[str, str] = {}
    while found := {name: why for name in asked if name not in reasons and (why := _needed(asked, name, reasons))}:
        reasons |= found
    return [replace(stray, keep=reasons[stray.key[1]]) if _kept(stray, reasons) else stray for stray in strays]


def _goes(stray: Stray) -> bool:
    return stray.key[0] == "queue" and not stray.keep


def _kept(stray: Stray, reasons: dict[str, str]) -> bool:
    return _goes(stray) and stray.key[1] in reasons


def _needed(asked: dict[str, list[str]], name: str, reasons: dict[str, str]) -> str:
    staying = [source for source in asked[name] if source not in asked or source in reasons]
    return f"queue {staying[0]!r} has its dead letters there" if staying else ""
