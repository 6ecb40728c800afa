"""What things are called: events, queues, and who hears of what."""

from __future__ import annotations

from postroad.outbox import bus_name

SUBMITTED = "events.transfers.submitted.usdc"
ACCEPTED = "events.transfers.accepted"
SETTLED = "events.transfers.settled"
ROUTE_UPDATED = "directory.route.updated"
TRANSFER_EVENTS = (SUBMITTED, ACCEPTED, SETTLED)

TOPIC = bus_name("events.transfers")
QUEUES = {
    "gateway": bus_name("gateway.usdc"),
    "ledger": bus_name("ledger.postings"),
    "projections": bus_name("projections.timeline"),
    "cts-inbound": "cts-inbound.fifo",
}
HEARS = {
    "gateway": (SUBMITTED,),
    "ledger": (SETTLED,),
    "projections": TRANSFER_EVENTS,
    "cts-inbound": (*TRANSFER_EVENTS, ROUTE_UPDATED),
}
OUTBOXES = ("cts_outbox", "gateway_outbox", "directory_outbox")
CONSUMERS = tuple(QUEUES)


def dead_letters_of(queue: str) -> str:
    """Where messages of the queue rest that failed."""
    return queue.replace(".fifo", "-dead.fifo")
