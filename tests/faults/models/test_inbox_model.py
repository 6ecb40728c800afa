"""The inbox beside a model: each consumer makes one effect of an event, and no two attempts make an external one."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.faults.models.machines import check_finds, check_model

from postroad.inbox import Effect, Inbox, inbox as module

pytestmark = pytest.mark.slow

IDS = [UUID(int=number) for number in range(1, 5)]
EXAMPLES = itertools.count(1)


@dataclass(slots=True)
class Row:
    """What the model knows of one event: its status, and the number and token of its last attempt."""

    status: str = "started"
    attempt: int = 0
    token: int = 0


@dataclass(slots=True)
class InboxModel:
    """The rules of one consumer's inbox in plain Python."""

    rows: dict[UUID, Row] = field(default_factory=dict)
    effects: list[UUID] = field(default_factory=list)
    """The effects that were committed."""

    def holds(self, effect: Effect) -> bool:
        row = self.rows.get(effect.event_id)
        return row is not None and row.status != "done" and row.token == effect.token

    def processed(self) -> set[UUID]:
        return {event_id for event_id, row in self.rows.items() if row.status == "done"}

    def unknown(self) -> set[UUID]:
        return {event_id for event_id, row in self.rows.items() if row.status == "abandoned"}


class InboxMachine(RuleBasedStateMachine):
    """One consumer, whose name is new in each example, in a file that all examples share."""

    def __init__(self, inbox: Inbox) -> None:
        super().__init__()
        self.inbox = inbox
        self.consumer = f"consumer-{next(EXAMPLES)}"
        self.model = InboxModel()
        self.begun: list[Effect] = []

    @rule(ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=3), commits=st.booleans())
    def handle(self, ids: list[UUID], commits: bool) -> None:
        """Handle events in one transaction, as a consumer does, and commit it or not."""
        before = dict(self.model.rows), list(self.model.effects)
        try:
            with self.inbox.transaction() as connection:
                for event_id in ids:
                    first = self.inbox.first_time(connection, self.consumer, event_id)
                    assert first is (event_id not in self.model.rows)
                    if first:
                        self._make_effect(connection, event_id)
                if not commits:
                    raise InterruptedError
        except InterruptedError:
            self.model.rows, self.model.effects = before

    def _make_effect(self, connection: Any, event_id: UUID) -> None:
        connection.execute("INSERT INTO ledger VALUES (?, ?)", (self.consumer, str(event_id)))
        self.model.rows[event_id] = Row("done")
        self.model.effects.append(event_id)

    @rule(event_id=st.sampled_from(IDS))
    def begin(self, event_id: UUID) -> None:
        effect = self.inbox.begin(self.consumer, event_id, lease=3_600)

        row = self.model.rows.setdefault(event_id, Row("abandoned"))
        if row.status == "abandoned":
            assert effect.status == ("new" if row.attempt == 0 else "unknown")
            assert effect.token > row.token
            row.status, row.attempt, row.token = "started", row.attempt + 1, effect.token
        else:
            assert effect.status == ("done" if row.status == "done" else "busy")
        if row.attempt:
            assert effect.attempt == row.attempt
        self.begun.append(dataclasses.replace(effect))

    @precondition(lambda self: self.begun)
    @rule(
        back=st.one_of(st.just(0), st.integers(0, 20)),
        verb=st.sampled_from(["finish", "forget", "abandon", "renew"]),
    )
    def end(self, back: int, verb: str) -> None:
        """End an effect, perhaps one of an attempt that another has taken over."""
        effect = self.begun[-1 - back % len(self.begun)]

        changed = getattr(self.inbox, verb)(effect)

        assert changed is self.model.holds(effect)
        if not changed:
            return
        if verb == "forget":
            del self.model.rows[effect.event_id]
        else:
            status = {"finish": "done", "abandon": "abandoned", "renew": "started"}[verb]
            self.model.rows[effect.event_id].status = status

    @rule(event_id=st.sampled_from(IDS), done=st.booleans())
    def resolve(self, event_id: UUID, done: bool) -> None:
        settled = self.inbox.resolve(self.consumer, event_id, done=done, by="ann", reason="looked")

        assert settled is (event_id in self.model.unknown())
        if settled and done:
            self.model.rows[event_id].status = "done"
        elif settled:
            del self.model.rows[event_id]

    @invariant()
    def the_inbox_agrees_with_the_model(self) -> None:
        assert self.inbox.processed(self.consumer, IDS) == self.model.processed()
        assert {effect.event_id for effect in self.inbox.unknown(consumer=self.consumer)} == self.model.unknown()

    @invariant()
    def every_effect_is_there_once(self) -> None:
        with self.inbox.transaction() as connection:
            rows = connection.execute("SELECT event_id FROM ledger WHERE consumer = ?", (self.consumer,)).fetchall()
        assert sorted(UUID(event_id) for (event_id,) in rows) == sorted(self.model.effects)


@pytest.fixture
def inbox(tmp_path: Path) -> Any:
    with Inbox.sqlite(tmp_path / "effects.db") as opened:
        opened.init()
        with opened.transaction() as connection:
            connection.execute("CREATE TABLE ledger (consumer TEXT, event_id TEXT)")
        yield opened


def test_the_inbox_agrees_with_its_rules(inbox: Inbox) -> None:
    check_model(partial(InboxMachine, inbox))


def test_an_inbox_that_takes_every_event_for_new_is_found(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bool", lambda rows: True, raising=False)

    check_finds(partial(InboxMachine, inbox))
