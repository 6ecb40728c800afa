"""Mutants: deliberate bugs that client processes of `postroad verify` get, to prove that the checker finds them."""

from __future__ import annotations

from postroad.errors import InvalidInput
from postroad.settings import nearest
from postroad.testing.mutants import bugs
from postroad.testing.mutants.mutant import Mutant

__all__ = ["MUTANTS", "Mutant", "find_mutant"]

MUTANTS = tuple(each for each in vars(bugs).values() if isinstance(each, Mutant))


def find_mutant(name: str) -> Mutant:
    """Return the mutant of this name.

    Raises:
        InvalidInput: There is none.
    """
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    if name in by_name:
        return by_name[name]
    raise InvalidInput(
        f"--mutant: {name!r} is not a mutant",
        field="mutant",
        nearest=nearest(name, by_name),
        remedy=f"They are {', '.join(by_name)}.",
    )
