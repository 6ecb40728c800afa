"""Directory: tells when a route has changed."""

from __future__ import annotations

from examples.transfers.database import transaction
from examples.transfers.names import ROUTE_UPDATED

from postroad.outbox import DomainEvent, Outbox


def update_routes(dsn: str, routes: int) -> None:
    """Record that routes have changed; such an event has no key but its tenant."""
    outbox = Outbox.open(dsn, table="directory_outbox")
    with transaction(dsn) as connection:
        for number in range(routes):
            tenant = f"tnt_{number % 3}"
            event = DomainEvent(ROUTE_UPDATED, {"tenantId": tenant}, {"route": f"rt_{number}"}, tenant_id=tenant)
            outbox.add(connection, event)
    outbox.close()
