"""What a mutant is, and how it gets into a process."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from postroad.testing.faults import method_at


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug: what it does, the invariant that it breaks, and the scenario that shows it."""

    name: str
    bug: str
    invariant: str
    apply: Callable[[], None]
    """Puts the bug into this process by replacing parts of the product; runs before the role's work."""
    scenario: str = "queue"
    messages: int = 400
    kills: int = 20
    """How much a run does that shows it: few faults for a bug that faults may excuse."""
    by_power_loss: bool = False
    """Whether only a power cut shows it: what the kernel holds outlives a killed process."""


def mutant(
    bug: str, invariant: str, *, wraps: str | None = None, **shown_by: Any
) -> Callable[[Callable[..., Any]], Mutant]:
    """Make a mutant of the function that applies it, or of what is put around the method that it `wraps`.

    It has the name of the function; `shown_by` are its other fields.
    """

    def made(function: Callable[..., Any]) -> Mutant:
        apply = function if wraps is None else functools.partial(wrap, wraps, function)
        return Mutant(function.__name__.replace("_", "-"), bug, invariant, apply, **shown_by)

    return made


def wrap(place: str, around: Callable[..., Any]) -> None:
    """Replace the method at a place by `around`, which is called with the original method before its arguments."""
    owner, name, original = method_at(place)

    @functools.wraps(original)
    def mutated(*args: Any, **given: Any) -> Any:
        return around(original, *args, **given)

    setattr(owner, name, mutated)


def slow_handlers(seconds: float, *, chance: float, otherwise: float = 0.0) -> None:
    """Let handlers end `seconds` after their effect by `chance`, so that a lease or a process ends before the ack."""

    @contextmanager
    def transaction(original: Callable[..., Any], inbox: Any) -> Iterator[Any]:
        with original(inbox) as connection:
            yield connection
        time.sleep(seconds if random.random() < chance else otherwise)

    wrap("postroad.inbox.inbox:Inbox.transaction", transaction)


def rewrite(module: str, statement: str, old: str, new: str) -> None:
    """Replace a part of a statement that a module of the product has as a constant."""
    owner = import_module(module)
    text = getattr(owner, statement)
    assert old in text, f"{module}.{statement} has no {old!r}"
    setattr(owner, statement, text.replace(old, new))
