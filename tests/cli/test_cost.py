"""`postroad cost`."""

from __future__ import annotations

import pytest
from tests.cli.terminal import Postroad


def test_without_a_number_three_sizes_of_deployment_are_priced(postroad: Postroad) -> None:
    items = postroad("cost", "--json").document["items"]

    assert items == [
        {"scale": "Dev", "messages_per_day": 1_000, "monthly_usd": 0.0},
        {"scale": "10k DAU", "messages_per_day": 100_000, "monthly_usd": 1.04},
        {"scale": "100k DAU", "messages_per_day": 1_000_000, "monthly_usd": 14.0},
    ]
    assert "$14.00" in postroad("cost").out


def test_a_number_of_messages_is_priced_step_by_step(postroad: Postroad) -> None:
    found = postroad("cost", "--messages-per-day", "100000", "--json")

    assert found.code == 0
    assert found.document == {
        "requests_per_message": 1.2,
        "requests": 3_600_000,
        "billable_requests": 2_600_000,
        "request_usd": 1.04,
        "transfer_usd": 0.0,
        "monthly_usd": 1.04,
    }
    assert "a month: $1.04" in postroad("cost", "--messages-per-day", "100000").out


def test_every_option_reaches_the_estimate(postroad: Postroad) -> None:
    found = postroad(
        "cost",
        "--messages-per-day",
        "1000000",
        "--send-batch",
        "5",
        "--receive-batch",
        "2",
        "--delete-batch",
        "4",
        "--body-bytes",
        "65536",
        "--pollers",
        "3",
        "--poll-wait",
        "10s",
        "--fifo",
        "--transfer-gb",
        "11",
        "--days",
        "10",
        "--json",
    )

    assert found.document["requests_per_message"] == 2.25
    assert found.document["requests"] == 22_500_000 + 3 * 10 * 8_640
    assert found.document["transfer_usd"] == 0.9
    assert found.document["request_usd"] == pytest.approx((22_500_000 + 259_200 - 1_000_000) / 1e6 * 0.5)


def test_a_chat_pays_for_each_message_in_two_queues_and_for_the_polls_of_its_worker(postroad: Postroad) -> None:
    chat = postroad("cost", "--topology", "chat", "--messages-per-day", "100000", "--json").document
    twice = postroad("cost", "--messages-per-day", "200000", "--pollers", "2", "--json").document
    of_three = postroad("cost", "--topology", "chat", "--messages-per-day", "0", "--pollers", "6", "--json").document

    assert chat == twice
    assert chat["requests"] == 7_200_000 + 2 * 30 * 86_400 // 20
    assert of_three["requests"] == 6 * 30 * 86_400 // 20


@pytest.mark.parametrize(
    "args",
    [
        "--messages-per-day -1",
        "--messages-per-day 5 --send-batch 0",
        "--messages-per-day 5 --receive-batch 11",
        "--messages-per-day nan",
        "--send-batch 11",
        "--topology nothing",
        "--messages-per-day 5 --poll-wait 0",
    ],
)
def test_numbers_that_mean_nothing_are_exit_2(args: str, postroad: Postroad) -> None:
    outcome = postroad("cost", *args.split())

    assert (outcome.code, outcome.out) == (2, "")
    assert args.split()[-2].removeprefix("--").replace("-", "_") in outcome.err.replace("-", "_")
