"""Which types of events a consumer wants."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from postroad.errors import ConfigurationError

_TYPE = re.compile(r"[A-Za-z0-9._:-]{1,200}(\.\*)?")


@dataclass(frozen=True, slots=True)
class Choice:
    """Types by their exact names and by what they begin with."""

    names: frozenset[str]
    prefixes: tuple[str, ...]

    def __contains__(self, event_type: str) -> bool:
        return event_type in self.names or event_type.startswith(self.prefixes)


def choose(types: Iterable[str] | None) -> Choice:
    """The choice of these names, of which `prefix.*` means all that begin with `prefix.`; None chooses all."""
    if types is None:
        return Choice(frozenset(), ("",))
    if isinstance(types, str):
        raise _refused(types)
    chosen = list(types)
    for each in chosen:
        if _TYPE.fullmatch(str(each)) is None:
            raise _refused(each)
    if not chosen:
        raise _refused(chosen)
    prefixes = tuple(each.removesuffix("*") for each in chosen if each.endswith(".*"))
    return Choice(frozenset(each for each in chosen if not each.endswith(".*")), prefixes)


def _refused(types: object) -> ConfigurationError:
    return ConfigurationError(
        f"types: {types!r} is not a list of types or prefixes", field="types",
        remedy="Give names such as 'orders.placed' or 'orders.*', or None for all.",
    )  # fmt: skip
