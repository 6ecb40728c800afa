"""Gateway (USDC): submits transfers to a rail outside, and tells what became of them."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid5

from examples.transfers.database import run, transaction
from examples.transfers.names import ACCEPTED, SETTLED

from postroad.errors import DuplicateEvent
from postroad.inbox import Effect
from postroad.outbox import DomainEvent, Outbox


def handler(dsn: str) -> Callable[[DomainEvent, Effect], None]:
    """What the gateway does with a submitted transfer."""
    outbox = Outbox.open(dsn, table="gateway_outbox")

    def submit(event: DomainEvent, effect: Effect) -> None:
        call_rail(dsn, effect.idempotency_key)
        tell(outbox, dsn, event)

    return submit


def call_rail(dsn: str, idempotency_key: str) -> None:
    """The rail rejects nothing, writes every call down, and acts once for each key."""
    with transaction(dsn) as connection:
        run(connection, "INSERT INTO rail_calls (idempotency_key) VALUES (?)", (idempotency_key,))


def tell(outbox: Outbox, dsn: str, event: DomainEvent) -> None:
    """Record `accepted` and `settled`. Their ids follow from the event's, so that a second attempt records nothing."""
    with transaction(dsn) as connection:
        for type in (ACCEPTED, SETTLED):
            told = DomainEvent(type, event.key, event.payload, event.tenant_id, event_id=uuid5(event.event_id, type))
            try:
                outbox.add(connection, told)
            except DuplicateEvent:
                continue
