"""Buses, sessions and main loops."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

from tests.bus.vocabulary import QUICK, Placed
from tests.faults.bad_input.cases import Answer, attempt, described, newest_dead_letter
from tests.faults.bad_input.library import Library, send

import postroad
from postroad.bus import BusConfig, InProcessEventBus, SQSEventBus
from postroad.inbox import Inbox
from postroad.sessions import Session, Snapshot, SQSMainLoopClient


@dataclass
class Mutable:
    """Not frozen, so no state of a session."""

    n: int = 0


@dataclass(frozen=True)
class Idle:
    """Frozen, but without a reducer."""

    n: int = 0


class Buses(Library):
    """A bus with a group, one handler and dead letters; and a bus in this process."""

    kinds = {"object": object, "mutable": Mutable, "idle": Idle}

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.seen: list[object] = []
        self.bus = self.backend.bus("orders", "billing", config=QUICK)
        self.bus.subscribe(Placed, self.seen.append)
        self.narrow = self.backend.bus("small", "billing", config=postroad.BusConfig(overflow="fail"))
        self.session = Session(bus=InProcessEventBus())
        self.session[Placed].append(Placed())
        self.backend.bus("named", "billing", config=QUICK).close()
        self.inbox = Inbox.sqlite(str(folder / "inbox.db"))
        self.inbox.init()
        self._handle_one()

    def publish(self, event: Any) -> Answer:
        """Publish an event; a failed publish counts as its error."""
        result = self.narrow.publish(event)
        if result.ok:
            return Answer("accepted", None, repr(result))
        return Answer("error", type(result.errors[0].error).__name__, described(result.errors[0].error))

    def receive(self, body: str) -> Answer:
        """Put a body into the group's queue, as another program could, and let the bus receive it."""
        modules = set(sys.modules)
        send(self.backend.queue("orders--billing"), body)
        assert self.bus.receive_once() == []
        assert set(sys.modules) == modules
        return newest_dead_letter(self.backend.queue("orders--billing--dead"), body.encode())

    def config(self, **fields: Any) -> Answer:
        """Make a configuration."""
        return attempt(lambda: BusConfig(**fields))

    def environment(self, **variables: str) -> Answer:
        """Read a configuration from the environment."""
        with mock.patch.dict(os.environ, variables):
            return attempt(BusConfig.from_env)

    def sqs(self, url: str | None = None) -> Answer:
        """Make a bus on a queue of SQS."""
        return attempt(lambda: SQSEventBus(queue_url=url))

    def group(self, topic: str, group: str | None = None) -> Answer:
        """Make a bus with a group."""
        return attempt(lambda: self.backend.bus(topic, group, config=QUICK))

    def start_twice(self) -> Answer:
        """Start a receiver that runs already, which goes on."""
        self.bus.start_receiver()
        try:
            answer = attempt(self.bus.start_receiver)
            assert self.bus.health().running
        finally:
            self.bus.stop_receiver()
        return answer

    def unbound(self) -> Answer:
        """Publish on a bus that belongs to no backend yet."""
        return attempt(lambda: postroad.Bus("orders", group="billing").publish(Placed()))

    def on(self, event_type: Any = Placed, handler: Any = print, **options: Any) -> Answer:
        """Register a handler."""
        return attempt(lambda: self.bus.on(event_type, **options)(handler))

    def on_twice(self) -> Answer:
        """Register two handlers under one name on a bus with an inbox."""
        bus = self.backend.bus("named", "billing", config=QUICK, inbox=self.inbox)
        bus.on(Placed, name="bill")(lambda event, connection: None)
        try:
            return attempt(lambda: bus.on(Placed, name="bill")(lambda event, connection: None))
        finally:
            bus.close()

    def subscribe(self, event_type: Any = Placed, handler: Any = print) -> Answer:
        """Subscribe a handler."""
        return attempt(lambda: self.bus.subscribe(event_type, handler))

    def use(self, middleware: Any) -> Answer:
        """Put a middleware around the handlers."""
        return attempt(lambda: self.bus.use(middleware))

    def event(self, cls: Any) -> Answer:
        """Declare an event."""
        return attempt(lambda: postroad.event(cls))

    def install(self, kind: str) -> Answer:
        """Install a state in a session."""
        return attempt(lambda: self.session.install(self.kinds[kind]))

    def restore(self, text: str) -> Answer:
        """Restore a session from text."""
        before = self.session[Placed].all()
        answer = attempt(lambda: self.session.restore(Snapshot.from_json(text)))
        assert self.session[Placed].all() == before != ()
        return answer

    def submit(self, timeout: float = 5.0, deadline: datetime | None = None) -> Answer:
        """Ask a main loop."""
        bus = InProcessEventBus()
        client = SQSMainLoopClient(request_bus=bus, response_bus=bus)
        try:
            return attempt(lambda: client.submit("hello", timeout=timeout, deadline=deadline))
        finally:
            client.close()

    def works(self) -> None:
        """Publish an event and handle it."""
        self._handle_one()

    def close(self) -> None:
        """Close the buses and the store."""
        self.bus.close()
        self.narrow.close()
        self.inbox.close()
        super().close()

    def _handle_one(self) -> None:
        before = len(self.seen)
        assert self.bus.publish(Placed()).ok
        assert self.bus.receive_once() == [Placed()]
        assert len(self.seen) == before + 1
