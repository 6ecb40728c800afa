"""Gateway (USDC): submits transfers to a rail outside, and tells what became of them."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid5

from examples.transfers.database import run
from examples.transfers.names import ACCEPTED, SETTLED

from postroad.errors import DuplicateEvent
from postroad.inbox import Effect, Inbox
from postroad.outbox import DomainEvent, Outbox


def handler(inbox: Inbox, outbox: Outbox) -> Callable[[DomainEvent, Effect], None]:
    """What the gateway does with a submitted transfer, in transactions of its database."""

    def submit(event: DomainEvent, effect: Effect) -> None:
        call_rail(inbox, effect.idempotency_key)
        tell(inbox, outbox, event)

    return submit


def call_rail(inbox: Inbox, idempotency_key: str) -> None:
    """The rail rejects nothing, writes every call down, and acts once for each key."""
    with inbox.transaction() as connection:
        run(connection, "INSERT INTO rail_calls (idempotency_key) VALUES (?)", (idempotency_key,))


def tell(inbox: Inbox, outbox: Outbox, event: DomainEvent) -> None:
    """Record `accepted` and `settled`. Their ids follow from the event's, so that a second attempt records nothing."""
    with inbox.transaction() as connection:
        for type in (ACCEPTED, SETTLED):
            told = DomainEvent(type, event.key, event.payload, event.tenant_id, event_id=uuid5(event.event_id, type))
            try:
                outbox.add(connection, told)
            except DuplicateEvent:
                continue
