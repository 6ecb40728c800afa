"""Outbox and inbox, in a database of the application's own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from tests.faults.bad_input.cases import Answer, State, attempt, newest_dead_letter
from tests.faults.bad_input.library import Library, send
from tests.inbox.mail import DEAD, FIFO, event, send as send_events
from tests.outbox.dispatching.publishers import Recorder
from tests.outbox.fixtures import an_event

from postroad.inbox import Consumer, Inbox, insert_once
from postroad.outbox import AesGcmCipher, DispatcherConfig, Outbox, OutboxDispatcher

KNOWN = UUID("018f0000-0000-7000-8000-00000000000a")
ROW = "INSERT INTO outbox (id, eventtype, payload, state, attempts) VALUES (?, 't', ?, ?, ?)"


class OutboxSurface:
    """An outbox with one event that was sent; each input is given in a transaction that goes on afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outbox = Outbox.sqlite(str(folder / "app.db"))
        self.outbox.init()
        with closing(self._connect()) as connection:
            self.outbox.add(connection, an_event(event_id=KNOWN))
            connection.commit()
        self._dispatch()

    def give(self, input: Any) -> Answer:
        """Call the verb that the input names."""
        arguments = dict(input)
        answer: Answer = getattr(self, arguments.pop("do"))(**arguments)
        return answer

    def add(self, **fields: Any) -> Answer:
        """Record an event; the transaction is still good for another statement."""
        if fields.get("event_id") == str(KNOWN):
            fields["event_id"] = KNOWN
        with closing(self._connect()) as connection:
            connection.execute("BEGIN")
            answer = attempt(lambda: self.outbox.add(connection, an_event(**fields)))
            assert connection.in_transaction
            assert connection.execute("SELECT count(*) FROM outbox").fetchone()
            connection.commit()
        return answer

    def add_on(self, connection: str) -> Answer:
        """Record an event on something that holds no transaction."""
        with closing(sqlite3.connect(self.folder / "app.db", isolation_level=None)) as autocommit:
            given: Any = autocommit if connection == "autocommit" else connection
            return attempt(lambda: self.outbox.add(given, an_event()))

    def row(self, payload: str = "{}", state: str = "PENDING", attempts: int = 0) -> Answer:
        """Insert a row by plain SQL, dispatch, and answer with what became of it."""
        row_id = str(uuid4())
        with closing(self._connect()) as connection:
            connection.execute(ROW, (row_id, payload, state, attempts))
            connection.commit()
            self._dispatch()
            found = connection.execute(
                "SELECT state, attempts, lasterror FROM outbox WHERE id = ?", (row_id,)
            ).fetchone()
        assert self.outbox.status().failed + (found[0] == "DONE") > 0
        return Answer("dead_letter", (found[2] or "").partition(":")[0], f"{found[0]} after {found[1]}: {found[2]}")

    def config(self, **fields: Any) -> Answer:
        """Configure a dispatcher."""
        return attempt(lambda: DispatcherConfig(**fields))

    def open(self, **options: Any) -> Answer:
        """Open an outbox."""
        return attempt(lambda: Outbox.sqlite(str(self.folder / "app.db"), **options))

    def key_file(self, text: str, mode: int) -> Answer:
        """Read the keys of a cipher."""
        path = self.folder / "keys.json"
        path.write_text(text)
        path.chmod(mode)
        try:
            return attempt(lambda: AesGcmCipher.from_file(path))
        finally:
            path.unlink()

    def redrive(self, **options: Any) -> Answer:
        """Redrive by hand."""
        return attempt(lambda: self.outbox.redrive(**options))

    def dispatch_blank(self) -> Answer:
        """Dispatch from a database without the tables."""
        sqlite3.connect(self.folder / "blank.db").close()
        outbox = Outbox.sqlite(str(self.folder / "blank.db"))
        try:
            return attempt(OutboxDispatcher(outbox, Recorder()).run_once)
        finally:
            outbox.close()

    def state(self) -> State:
        """Return the rows of all tables."""
        with closing(self._connect()) as connection:
            names = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in sorted(names)}

    def letters(self) -> tuple[State, dict[str, list[Any]]]:
        """Return the tables beside the outbox, and its rows: one that failed is a dead letter."""
        state = self.state()
        return {name: rows for name, rows in state.items() if name == "outbox_audit"}, {"outbox": state["outbox"]}

    def works(self) -> None:
        """Record an event and dispatch it."""
        good = an_event()
        with closing(self._connect()) as connection:
            self.outbox.add(connection, good)
            connection.commit()
        assert good.event_id in [each.event_id for each in self._dispatch()]

    def close(self) -> None:
        """Close the outbox."""
        self.outbox.close()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / "app.db")

    def _dispatch(self) -> list[Any]:
        recorder = Recorder()
        dispatcher = OutboxDispatcher(self.outbox, recorder, DispatcherConfig(listen=False, keep_sent=None))
        dispatcher.drain(timeout=10)
        return recorder.events()


class InboxSurface(Library):
    """A consumer of a FIFO queue with dead letters, and its inbox."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.inbox = Inbox.sqlite(str(folder / "inbox.db"))
        self.inbox.init()
        self.backend.create_queue(DEAD)
        self.queue = self.backend.create_queue(FIFO)
        self.seen: list[Any] = []
        self.consumer = Consumer(
            self.queue, self._handle, name="ledger", inbox=self.inbox, dead_letters=self.backend.queue(DEAD.name)
        )
        self._number = 0
        self.works()

    def receive(self, body: str) -> Answer:
        """Put a body into the queue and let the consumer receive it."""
        self._number += 1
        send(self.queue, body, group="g", dedup_id=f"bad-{self._number}")
        report = self.consumer.run_once()
        assert (report.received, report.handled) == (1, 0)
        return newest_dead_letter(self.backend.queue(DEAD.name), body.encode())

    def consumer_with(self, **options: Any) -> Answer:
        """Make a consumer."""
        given: dict[str, Any] = {"name": "x", "inbox": self.inbox} | options
        return attempt(lambda: Consumer(self.queue, self._handle, **given))

    def inbox_with(self, days: float = 30, **options: Any) -> Answer:
        """Make a consumer on an inbox that keeps its rows for some days."""

        def call() -> object:
            inbox = Inbox.sqlite(None, retention=timedelta(days=days), **options)
            return Consumer(self.queue, self._handle, name="x", inbox=inbox)

        return attempt(call)

    def insert(self, table: str, key: dict[str, Any], values: dict[str, Any]) -> Answer:
        """Insert once under a name from outside."""

        def call() -> object:
            with self.inbox.transaction() as connection:
                return insert_once(connection, table, key=key, values=values)

        return attempt(call)

    def first_time(self, **arguments: Any) -> Answer:
        """Ask whether an event is new."""

        def call() -> object:
            with self.inbox.transaction() as connection:
                return self.inbox.first_time(connection, **arguments)

        return attempt(call)

    def resolve(self, **arguments: Any) -> Answer:
        """Decide the outcome of an effect that is not known."""
        return attempt(lambda: self.inbox.resolve("ledger", uuid4(), **arguments))

    def works(self) -> None:
        """Send an event and handle it once."""
        good = event("tr_1")
        send_events(self.queue, good)
        assert self.consumer.run_once().handled == 1
        assert self.seen[-1].event_id == good.event_id

    def close(self) -> None:
        """Close the inbox and the store."""
        self.inbox.close()
        super().close()

    def _handle(self, event: Any, connection: Any) -> None:
        self.seen.append(event)
