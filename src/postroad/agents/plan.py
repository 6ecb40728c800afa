"""An estimate of what a number of agents needs and costs on AWS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final

from msgspec import Meta

from postroad.arguments import FINITE, check
from postroad.errors import InvalidInput

PRICES_AS_OF: Final = "2025-07-01"
PRICES: Final[Mapping[str, float]] = {
    "kinesis_shard_hour": 0.015,
    "kinesis_put_million": 0.014,
    "dynamodb_write_million": 0.625,
    "dynamodb_read_million": 0.125,
    "dynamodb_gb_month": 0.25,
    "sqs_fifo_million": 0.5,
    "lambda_request_million": 0.2,
    "lambda_gb_second": 0.0000166667,
}
"""US dollars in us-east-1 as AWS listed them on `PRICES_AS_OF`: on demand, without free tiers, volume tiers or
discounts. Give today's prices in `PlanInput.prices`."""
MONTH_SECONDS: Final = 2_592_000
MILLION_SECONDS: Final = 2.592
_DEFAULT_QUOTAS: Final = {
    "kinesis_shards": 20_000,
    "dynamodb_table_write_units": 40_000,
    "lambda_concurrency": 1_000,
    "sns_fifo_topics": 1_000,
}
_SNS_SUBSCRIPTIONS: Final = 100
_ABOVE_ZERO: Final = Annotated[float, Meta(gt=0, le=FINITE, description="a number above 0")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """The load to plan for. All numbers are above zero."""

    agents: float = 1_000_000
    """How many agents there are."""
    events_per_second: float = 100_000
    """How many events all agents publish together."""
    subscribers: float = 10
    """How many agents listen to each agent."""
    event_bytes: float = 1_024
    """The size of an event."""
    window_seconds: float = 1
    """How long the functions collect a batch."""
    retention_hours: float = 168
    """How long rows are kept."""
    poll_seconds: float = 20
    """How long an idle agent waits in one receive."""
    headroom: float = 1.25
    """By how much the shards exceed the load."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """Prices in US dollars that replace those of `PRICES`."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name != "prices":
                check(getattr(self, each.name), _ABOVE_ZERO, each.name)
        for name, price in self.prices.items():
            if name not in PRICES:
                raise InvalidInput(
                    f"prices: {name!r} is not a price", field="prices", remedy=f"The prices are {', '.join(PRICES)}."
                )
            check(price, _ABOVE_ZERO, f"prices.{name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What each service needs, and what it costs."""

    deliveries_per_second: float
    kinesis: dict[str, float]
    dynamodb: dict[str, float]
    sqs: dict[str, float]
    lambda_: dict[str, float]
    sns_sqs: dict[str, Any]
    quotas: list[dict[str, Any]]
    cost_per_month: dict[str, float]
    cost_per_million_deliveries: float
    prices: dict[str, float]
    prices_as_of: str

    def document(self) -> dict[str, Any]:
        """Return the plan under the names of its JSON."""
        return {each.name.rstrip("_"): getattr(self, each.name) for each in fields(self)}


def plan(given: PlanInput) -> Plan:
    """Estimate what AWS needs for these agents."""
    prices = {**PRICES, **given.prices}
    deliveries = given.events_per_second * given.subscribers
    kinesis = _kinesis(given)
    dynamodb = _dynamodb(given, deliveries)
    sqs = _sqs(given, deliveries)
    functions = {
        "aggregator_concurrency": kinesis["shards"],
        "publisher_concurrency": dynamodb["partitions"],
        "invocations_per_second": math.ceil((kinesis["shards"] + dynamodb["partitions"]) / given.window_seconds),
    }
    cost = _cost(given, prices, {**kinesis, **dynamodb, **sqs, **functions}, deliveries)
    needed = {
        "kinesis_shards": kinesis["shards"],
        "dynamodb_table_write_units": dynamodb["write_units_per_second"],
        "lambda_concurrency": functions["aggregator_concurrency"] + functions["publisher_concurrency"],
        "sns_fifo_topics": given.agents,
    }
    return Plan(
        deliveries_per_second=deliveries,
        kinesis=kinesis,
        dynamodb=dynamodb,
        sqs=sqs,
        lambda_=functions,
        sns_sqs={
            "topics": given.agents,
            "publish_calls_per_second": math.ceil(given.events_per_second),
            "feasible": given.agents <= _DEFAULT_QUOTAS["sns_fifo_topics"] and given.subscribers <= _SNS_SUBSCRIPTIONS,
        },
        quotas=[
            {"name": name, "needed": needed[name], "default": default, "exceeded": needed[name] > default}
            for name, default in _DEFAULT_QUOTAS.items()
        ],
        cost_per_month=cost,
        cost_per_million_deliveries=cost["total"] / (deliveries * MILLION_SECONDS),
        prices=prices,
        prices_as_of=PRICES_AS_OF,
    )


def _kinesis(given: PlanInput) -> dict[str, float]:
    events, size = given.events_per_second, given.event_bytes
    return {
        "shards": math.ceil(given.headroom * max(events / 1_000, events * size / 1_048_576)),
        "hot_producer_events_per_second": min(1_000, math.floor(1_048_576 / size)),
    }


def _dynamodb(given: PlanInput, deliveries: float) -> dict[str, float]:
    row_bytes = given.event_bytes + 256
    units = math.ceil(row_bytes / 1_024)
    return {
        "row_bytes": row_bytes,
        "write_units_per_row": units,
        "write_units_per_second": deliveries * units,
        "partitions": math.ceil(deliveries * units / 1_000),
        "read_units_per_second": given.events_per_second * math.ceil(128 * given.subscribers / 4_096),
        "batch_write_calls_per_second": math.ceil(deliveries / 25),
        "storage_gb": deliveries * row_bytes * 3_600 * given.retention_hours / 1e9,
        "hot_subscriber_events_per_second": math.floor(1_000 / units),
    }


def _sqs(given: PlanInput, deliveries: float) -> dict[str, float]:
    per_call = min(10, max(1, given.window_seconds * deliveries / given.agents))
    return {
        "queues": given.agents,
        "messages_per_call": per_call,
        "send_calls_per_second": math.ceil(deliveries / per_call),
        "receive_calls_per_second": math.ceil(max(deliveries / per_call, given.agents / given.poll_seconds)),
        "delete_calls_per_second": math.ceil(deliveries / per_call),
    }


def _cost(
    given: PlanInput, prices: Mapping[str, float], needs: Mapping[str, float], deliveries: float
) -> dict[str, float]:
    puts = given.events_per_second * math.ceil(given.event_bytes / 25_600) * MILLION_SECONDS
    calls = sum(needs[f"{verb}_calls_per_second"] for verb in ("send", "receive", "delete"))
    invocations = needs["invocations_per_second"]
    cost = {
        "kinesis": needs["shards"] * 720 * prices["kinesis_shard_hour"] + puts * prices["kinesis_put_million"],
        "dynamodb": (
            deliveries * needs["write_units_per_row"] * prices["dynamodb_write_million"]
            + needs["read_units_per_second"] * prices["dynamodb_read_million"]
        )
        * MILLION_SECONDS
        + needs["storage_gb"] * prices["dynamodb_gb_month"],
        "sqs": calls * MILLION_SECONDS * prices["sqs_fifo_million"],
        "lambda": invocations * MILLION_SECONDS * prices["lambda_request_million"]
        + invocations * 0.1 * MONTH_SECONDS * prices["lambda_gb_second"],
    }
    return {**cost, "total": sum(cost.values())}
