"""What a mutant is, and how it gets into a process."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any


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


def mutant(name: str, bug: str, invariant: str, **shown_by: Any) -> Callable[[Callable[[], None]], Mutant]:
    """Make a mutant of the function that applies it; `shown_by` are its other fields."""
    return lambda apply: Mutant(name, bug, invariant, apply, **shown_by)


def wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    """Replace a method by `around`, which is called with the original method before its arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def mutated(*args: Any, **given: Any) -> Any:
        return around(original, *args, **given)

    setattr(owner, name, mutated)


def slow_handlers(seconds: float, *, chance: float, otherwise: float = 0.0) -> None:
    """Let handlers end `seconds` after their effect by `chance`, so that a lease or a process ends before the ack."""
    from postroad.inbox import Inbox

    @contextmanager
    def transaction(original: Callable[..., Any], inbox: Inbox) -> Iterator[Any]:
        with original(inbox) as connection:
            yield connection
        time.sleep(seconds if random.random() < chance else otherwise)

    wrap(Inbox, "transaction", transaction)


def rewrite(module: ModuleType, statement: str, old: str, new: str) -> None:
    """Replace a part of a statement that a module of the product has as a constant."""
    text = getattr(module, statement)
    assert old in text, f"{module.__name__}.{statement} has no {old!r}"
    setattr(module, statement, text.replace(old, new))
