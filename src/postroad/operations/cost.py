"""An estimate of what messages cost on SQS, before anything is deployed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Final

from msgspec import Meta

from postroad.arguments import check, whole_number
from postroad.topology import QueueDecl, Topology

PRICE_OF_MILLION: Final = Fraction("0.40")
PRICE_OF_FIFO_MILLION: Final = Fraction("0.50")
PRICE_OF_GB: Final = Fraction("0.09")
FREE_REQUESTS: Final = 1_000_000
FREE_GB: Final = 1
SCALES: Final[Mapping[str, int]] = {"Dev": 1_000, "10k DAU": 100_000, "100k DAU": 1_000_000}
"""Messages a day of deployments of three sizes."""
_CHUNK_BYTES: Final = 65_536
_MOST_IN_BATCH: Final = 10
_MOST_BYTES: Final = 1_048_576
_MOST_WAIT: Final = 20
_MOST: Final = 10**15
_DAY_SECONDS: Final = 86_400
_Amount = Annotated[float, Meta(ge=0, le=_MOST, description=f"a number of 0 or more and at most {_MOST:g}")]
_Days = Annotated[float, Meta(gt=0, le=_MOST, description=f"a number above 0 and at most {_MOST:g}")]
_Wait = Annotated[float, Meta(gt=0, le=_MOST_WAIT, description=f"a number above 0 and at most {_MOST_WAIT:g}")]
_Bytes = Annotated[int, Meta(ge=1, le=_MOST_BYTES, description=f"a whole number from 1 to {_MOST_BYTES:,}")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Requests and US dollars for the whole time. Each 64 KiB of a request is billed as one request.

    Attributes:
        requests_per_message: Requests for one message.
        requests: All requests.
        billable_requests: Those that are paid for.
        request_usd: The price of the requests.
        transfer_usd: The price of data that leaves AWS.
        monthly_usd: The sum.
    """

    requests_per_message: float
    requests: int
    billable_requests: int
    request_usd: float
    transfer_usd: float
    monthly_usd: float


def consumption(topology: Topology) -> tuple[int, float]:
    """Return how many queues the components consume, each message once, and how many seconds a receive waits there."""
    names = {name for component in topology.components for name in component.consumes}
    queues = [each for each in topology.resources if isinstance(each, QueueDecl) and each.name in names]
    waits = [queue.spec.receive_wait for queue in queues]
    return len(waits), min(waits, default=_MOST_WAIT)


def estimate_cost(
    messages_per_day: float,
    *,
    send_batch: int = 1,
    receive_batch: int = 10,
    delete_batch: int = 10,
    body_bytes: int = 1_024,
    pollers: int = 0,
    poll_wait: float = 20,
    fifo: bool = False,
    transfer_gb: float = 0.0,
    days: float = 30,
) -> CostEstimate:
    """Estimate what messages cost on SQS.

    Args:
        messages_per_day: Messages that are sent each day.
        send_batch: Messages in one send, from 1 to 10, by default 1.
        receive_batch: Messages in one receive, from 1 to 10, by default 10.
        delete_batch: Messages in one delete, from 1 to 10, by default 10.
        body_bytes: The size of a message, by default 1,024.
        pollers: Receivers that wait on empty queues all day, by default 0.
        poll_wait: Seconds for which each of their receives waits, by default 20.
        fifo: Whether the queues are FIFO, which cost more.
        transfer_gb: Gigabytes that leave AWS, by default 0.
        days: The time to estimate, by default 30 days.

    Raises:
        InvalidInput: An argument is out of range; it names the argument.

    Example:
        estimate_cost(100_000, send_batch=10).monthly_usd
    """
    check(messages_per_day, _Amount, "messages_per_day")
    check(pollers, _Amount, "pollers")
    check(transfer_gb, _Amount, "transfer_gb")
    check(poll_wait, _Wait, "poll_wait")
    check(days, _Days, "days")
    check(body_bytes, _Bytes, "body_bytes")
    for name, batch in (("send_batch", send_batch), ("receive_batch", receive_batch), ("delete_batch", delete_batch)):
        check(batch, whole_number(1, _MOST_IN_BATCH), name)
    per_message = _carried(send_batch, body_bytes) + _carried(receive_batch, body_bytes) + Fraction(1, delete_batch)
    polls = Fraction(pollers) * Fraction(days) * _DAY_SECONDS / Fraction(poll_wait)
    requests = math.ceil(Fraction(messages_per_day) * Fraction(days) * per_message + polls)
    billable = max(0, requests - FREE_REQUESTS)
    request_usd = Fraction(billable, 1_000_000) * (PRICE_OF_FIFO_MILLION if fifo else PRICE_OF_MILLION)
    transfer_usd = max(Fraction(0), Fraction(transfer_gb) - FREE_GB) * PRICE_OF_GB
    return CostEstimate(
        requests_per_message=float(per_message),
        requests=requests,
        billable_requests=billable,
        request_usd=float(request_usd),
        transfer_usd=float(transfer_usd),
        monthly_usd=float(request_usd + transfer_usd),
    )


def _carried(batch: int, body_bytes: int) -> Fraction:
    """Return the billed requests for one message that is sent or received in a batch."""
    return Fraction(math.ceil(Fraction(batch * body_bytes, _CHUNK_BYTES)), batch)
