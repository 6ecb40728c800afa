"""What messages cost on SQS before anything is deployed: requests first, then dollars."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from postroad.errors import InvalidInput
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Requests and US dollars of the whole time. Each 64 KiB of a request is paid as a request of its own."""

    requests_per_message: float
    requests: int
    billable_requests: int
    request_usd: float
    transfer_usd: float
    monthly_usd: float


class Consumption(NamedTuple):
    """What one of each component of a topology receives from: each message passes every queue once."""

    queues: int
    poll_wait: float
    """Seconds that a receive waits on an empty queue."""


def consumption(topology: Topology) -> Consumption:
    """Return how many queues the components consume, and how long they wait there."""
    names = {name for component in topology.components for name in component.consumes}
    queues = [each for each in topology.resources if isinstance(each, QueueDecl) and each.name in names]
    waits = [queue.spec.receive_wait for queue in queues]
    return Consumption(len(waits), min(waits, default=_MOST_WAIT))


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
    """Estimate what so many messages a day cost; `pollers` are receivers that wait on empty queues all day."""
    _check_number("messages_per_day", messages_per_day, least=0, most=_MOST)
    _check_number("pollers", pollers, least=0, most=_MOST)
    _check_number("transfer_gb", transfer_gb, least=0, most=_MOST)
    _check_number("poll_wait", poll_wait, above=0, most=_MOST_WAIT)
    _check_number("days", days, above=0, most=_MOST)
    _check_whole("body_bytes", body_bytes, _MOST_BYTES)
    for name, batch in (("send_batch", send_batch), ("receive_batch", receive_batch), ("delete_batch", delete_batch)):
        _check_whole(name, batch, _MOST_IN_BATCH)
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
    """Paid requests for one message that travels with others in a batch."""
    return Fraction(math.ceil(Fraction(batch * body_bytes, _CHUNK_BYTES)), batch)


def _check_number(name: str, value: object, *, least: float = -math.inf, above: float = -math.inf, most: float) -> None:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not (number > above and least <= number <= most):
        bound = f"of {least:g} or more" if above == -math.inf else f"above {above:g}"
        told = f"a number {bound} and at most {most:g}"
        raise InvalidInput(f"{name}: {value!r} is not {told}", field=name, remedy=f"Give {told}.")


def _check_whole(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        told = f"a whole number from 1 to {most:,}"
        raise InvalidInput(f"{name}: {value!r} is not {told}", field=name, remedy=f"Give {told}.")
