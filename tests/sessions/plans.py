"""The events and slices that the tests of sessions speak of."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from postroad import event
from postroad.sessions import reducer


@event(name="tests.sessions:AddStep")
class AddStep:
    step: str


@event(name="tests.sessions:DropSteps")
class DropSteps:
    reason: str = ""


@event(name="tests.sessions:Note")
class Note:
    text: str


@event(name="tests.sessions:Named")
class Named:
    text: str
    session_id: UUID | None = None


@dataclass(frozen=True)
class Plan:
    steps: tuple[str, ...] = ()

    @reducer(on=AddStep)
    def add_step(self, event: AddStep) -> Plan:
        return replace(self, steps=(*self.steps, event.step))

    @reducer(on=DropSteps)
    def drop_steps(self, event: DropSteps) -> Plan:
        return replace(self, steps=())


@dataclass(frozen=True)
class Count:
    seen: int = 0

    @reducer(on=AddStep)
    def count(self, event: AddStep) -> Count:
        return replace(self, seen=self.seen + 1)


@dataclass(frozen=True)
class Identified:
    text: str
    event_id: str = "0198f2f3-0000-7000-8000-000000000001"


@dataclass(frozen=True)
class Texts:
    texts: tuple[str, ...] = ()

    @reducer(on=Identified)
    def add(self, event: Identified) -> Texts:
        return Texts((*self.texts, event.text))


@dataclass(frozen=True)
class Numbered:
    number: int

    @property
    def event_id(self) -> int:
        return self.number


@dataclass(frozen=True)
class Tally:
    seen: int = 0

    @reducer(on=Numbered)
    def count(self, event: Numbered) -> Tally:
        return Tally(self.seen + 1)


def names_of(records: Iterable[logging.LogRecord]) -> list[str]:
    """Which log lines they are."""
    lines: list[Any] = [record.msg for record in records]
    return [line["event"] for line in lines]
