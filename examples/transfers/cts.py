"""CTS: takes transfers in, and follows what others tell about them."""

from __future__ import annotations

from typing import Any

from examples.transfers.database import run
from examples.transfers.names import ACCEPTED, ROUTE_UPDATED, SETTLED, SUBMITTED

from postroad.errors import Unavailable
from postroad.inbox import Inbox
from postroad.outbox import DomainEvent, Outbox

_STEPS = {SUBMITTED: ("INITIATED", "SUBMITTED"), ACCEPTED: ("SUBMITTED", "ACCEPTED"), SETTLED: ("ACCEPTED", "SETTLED")}
_MOVE = "UPDATE transfers SET state = ? WHERE id = ? AND state = ?"
_INVALIDATE = """
INSERT INTO route_cache (tenant, invalidations) VALUES (?, 1)
ON CONFLICT (tenant) DO UPDATE SET invalidations = route_cache.invalidations + 1
"""


def submit(dsn: str, transfers: int) -> None:
    """Make transfers, each in one transaction with its event."""
    outbox = Outbox.open(dsn, table="cts_outbox")
    with Inbox.open(dsn) as database:
        for number in range(transfers):
            while not _submitted(database, outbox, number):
                continue


def _submitted(database: Inbox, outbox: Outbox, number: int) -> bool:
    """Whether the transfer and its event are recorded; neither is when the database was too busy."""
    try:
        with database.transaction() as connection:
            _submit(outbox, connection, number)
    except Unavailable:
        return False
    return True


def _submit(outbox: Outbox, connection: Any, number: int) -> None:
    transfer, tenant, amount = f"tr_{number}", f"tnt_{number % 3}", f"{number % 97 + 1}.00"
    run(connection, "INSERT INTO transfers VALUES (?, ?, ?, 'INITIATED')", (transfer, tenant, amount))
    payload = {"amount": {"value": amount, "currency": "USD"}}
    outbox.add(connection, DomainEvent(SUBMITTED, {"transferId": transfer}, payload, tenant_id=tenant))


def inbound(event: DomainEvent, connection: Any) -> None:
    """Move the transfer one step on, or forget a cached route."""
    if event.type == ROUTE_UPDATED:
        run(connection, _INVALIDATE, (event.key["tenantId"],))
        return
    before, after = _STEPS[event.type]
    transfer = event.key["transferId"]
    if run(connection, _MOVE, (after, transfer, before)).rowcount != 1:
        run(connection, "INSERT INTO violations VALUES (?, ?)", (transfer, event.type))
