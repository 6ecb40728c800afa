"""What the bus calls a key and a topic."""

from __future__ import annotations

import hashlib
import re

_GROUP = re.compile(r"[!-~]{1,128}")


def group_id(tenant_id: str | None, lane: str) -> str:
    """The FIFO group of a key; what SNS and SQS would not take as a group becomes its SHA-256."""
    name = f"{tenant_id}:{lane}" if tenant_id else lane
    if _GROUP.fullmatch(name):
        return name
    return f"h:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def bus_name(name: str) -> str:
    """The name of a FIFO topic or queue on AWS, where names have no dots: events.transfers is events-transfers.fifo."""
    return f"{name.removesuffix('.fifo').replace('.', '-')}.fifo"
