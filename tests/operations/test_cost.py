"""What messages cost on SQS."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.errors import InvalidInput
from postroad.operations import estimate_cost
from postroad.operations.cost import consumption
from postroad.topology import Topology, chat_topology


@pytest.mark.parametrize(
    ("messages_per_day", "monthly_usd"), [(0, 0.0), (1_000, 0.0), (100_000, 1.04), (1_000_000, 14.0)]
)
def test_a_month_of_single_sends_costs_what_the_table_says(messages_per_day: int, monthly_usd: float) -> None:
    found = estimate_cost(messages_per_day)

    assert (found.requests_per_message, found.monthly_usd) == (1.2, monthly_usd)


def test_only_requests_above_the_first_million_are_paid() -> None:
    found = estimate_cost(100_000)

    assert (found.requests, found.billable_requests, found.request_usd) == (3_600_000, 2_600_000, 1.04)


def test_batched_sends_take_three_tenths_of_a_request() -> None:
    assert estimate_cost(1, send_batch=10).requests_per_message == 0.3


@pytest.mark.parametrize(
    ("body_bytes", "send_batch", "requests_per_message"),
    [(65_536, 1, 1 + 1 + 0.1), (65_537, 1, 2 + 1.1 + 0.1), (6_553, 10, 0.3), (6_554, 10, 0.2 + 0.2 + 0.1)],
)
def test_each_64_kib_is_a_request(body_bytes: int, send_batch: int, requests_per_message: float) -> None:
    found = estimate_cost(1, body_bytes=body_bytes, send_batch=send_batch)

    assert found.requests_per_message == pytest.approx(requests_per_message)


def test_receivers_that_wait_on_empty_queues_are_paid_for() -> None:
    assert estimate_cost(0, pollers=10).requests == 10 * 30 * 86_400 // 20
    assert estimate_cost(0, pollers=10, poll_wait=1, days=1).requests == 864_000


def test_fifo_requests_are_dearer() -> None:
    assert estimate_cost(1_000_000, fifo=True).monthly_usd == 17.5


def test_the_first_gigabyte_of_transfer_is_free() -> None:
    assert estimate_cost(0, transfer_gb=1).transfer_usd == 0
    assert estimate_cost(0, transfer_gb=101).monthly_usd == 9.0


def test_a_message_of_a_chat_passes_every_queue_that_its_workers_consume() -> None:
    assert consumption(chat_topology("shop", "dev")) == (2, 20)
    assert consumption(Topology("empty", ()))[0] == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages_per_day", -1),
        ("messages_per_day", float("nan")),
        ("messages_per_day", float("inf")),
        ("messages_per_day", "many"),
        ("messages_per_day", True),
        ("send_batch", 0),
        ("receive_batch", 11),
        ("delete_batch", 2.5),
        ("body_bytes", 0),
        ("body_bytes", 1_048_577),
        ("pollers", -1),
        ("poll_wait", 0),
        ("poll_wait", 21),
        ("transfer_gb", -0.1),
        ("days", 0),
        ("days", 1e300),
    ],
)
def test_numbers_that_mean_nothing_are_refused(field: str, value: Any) -> None:
    given: dict[str, Any] = {"messages_per_day": 1, field: value}

    with pytest.raises(InvalidInput, match=field) as refused:
        estimate_cost(**given)

    assert refused.value.field == field
