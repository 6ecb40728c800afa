"""Which types of events a consumer wants."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from postroad.errors import ConfigurationError
from postroad.events import default_registry

_TYPE = re.compile(r"[A-Za-z0-9._:-]{1,200}(\.\*)?")


@dataclass(frozen=True, slots=True)
class Choice:
    """Types by their exact names and by what they begin with."""

    names: frozenset[str]
    prefixes: tuple[str, ...]
    classes: frozenset[str] = frozenset()
    """The names of those that were given as classes."""

    def __contains__(self, event_type: str) -> bool:
        return event_type in self.names or event_type.startswith(self.prefixes)


def choose(types: Iterable[str | type] | None) -> Choice:
    """Return the choice of these types; None chooses all.

    A type is an event class or a name, of which `prefix.*` means all that begin with `prefix.`.
    """
    if types is None:
        return Choice(frozenset(), ("",))
    if isinstance(types, str | type):
        raise _refused(types)
    given = list(types)
    classes = frozenset(default_registry.register(each) for each in given if isinstance(each, type))
    names = [str(each) for each in given if not isinstance(each, type)]
    for each in names:
        if _TYPE.fullmatch(each) is None:
            raise _refused(each)
    if not given:
        raise _refused(given)
    prefixes = tuple(each.removesuffix("*") for each in names if each.endswith(".*"))
    return Choice(classes | {each for each in names if not each.endswith(".*")}, prefixes, classes)


def _refused(types: object) -> ConfigurationError:
    return ConfigurationError(
        f"types: {types!r} is not a list of types or prefixes",
        field="types",
        remedy="Give event classes, names such as 'orders.placed' or 'orders.*', or None for all.",
    )
