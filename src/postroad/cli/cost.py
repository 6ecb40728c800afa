"""`postroad cost|plan`: estimates of what messages and agents cost on AWS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from postroad.cli.call import Call, verb
from postroad.cli.display import table
from postroad.cli.packages import agents, agents_plan, operations_cost, topology as topologies
from postroad.cli.parameters import duration_option, flag, json_object, option, read_file
from postroad.telemetry import counted

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class CostOptions:
    """The options of an estimate."""

    send_batch: Annotated[int, option("N", "Messages per send, 1 to 10.")] = 1
    receive_batch: Annotated[int, option("N", "Messages per receive, 1 to 10.")] = 10
    delete_batch: Annotated[int, option("N", "Messages per delete, 1 to 10.")] = 10
    body_bytes: Annotated[int, option("B", "Bytes of a message; a request holds 64 KiB.")] = 1_024
    pollers: Annotated[int | None, option("N", "Receivers that wait on empty queues (one per queue).")] = None
    poll_wait: Annotated[float | None, duration_option("How long one of their receives waits (20s).")] = None
    fifo: Annotated[bool, flag("--fifo", "Use the prices of FIFO queues.")] = False
    transfer_gb: Annotated[float, option("GB", "Data that leaves AWS.")] = 0.0
    days: Annotated[float, option("D", "Days per month.")] = 30


@verb("cost", "--messages-per-day 100000 --send-batch 10")
def cost(
    call: Call,
    given: CostOptions,
    messages_per_day: Annotated[
        float | None, option("N", "Messages per day; by default three sizes of deployment.")
    ] = None,
    topology: Annotated[
        Literal["chat"] | None, option("TEMPLATE", "The template chat: two queues, and a worker that polls both.")
    ] = None,
) -> None:
    """Estimate the requests and the monthly cost on SQS."""
    passes, waits, wait = 1, 0, 20.0
    if topology is not None:
        passes, wait = operations_cost.consumption(topologies.chat_topology("project", "env"))
        waits = passes
    options = asdict(given)
    options["pollers"] = waits if given.pollers is None else given.pollers
    options["poll_wait"] = wait if given.poll_wait is None else given.poll_wait
    if messages_per_day is None:
        items = [
            {
                "scale": scale,
                "messages_per_day": messages,
                "monthly_usd": operations_cost.estimate_cost(messages * passes, **options).monthly_usd,
            }
            for scale, messages in operations_cost.SCALES.items()
        ]
        rows = ([i["scale"], f"{i['messages_per_day']:,}", f"${i['monthly_usd']:,.2f}"] for i in items)
        call.show({"items": items}, table(["SCALE", ">MESSAGES A DAY", ">A MONTH"], rows))
        return
    found = operations_cost.estimate_cost(messages_per_day * passes, **options)
    call.show(
        found,
        f"requests for each message of a queue: {found.requests_per_message:g}",
        f"{counted(found.requests, 'request')}, {found.billable_requests:,} of them paid: ${found.request_usd:,.2f}",
        f"transfer: ${found.transfer_usd:,.2f}",
        f"a month: ${found.monthly_usd:,.2f}",
    )


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The size of a deployment of agents."""

    agents: Annotated[float, option("A", "How many agents exist.")] = 1_000_000
    events_per_second: Annotated[float, option("E", "Events of all agents per second.")] = 100_000
    subscribers: Annotated[float, option("S", "Mean number of subscribers per event.")] = 10
    event_bytes: Annotated[float, option("B", "Mean size of an event.")] = 1_024
    window_seconds: Annotated[float, option("W", "Batching window of the functions.")] = 1
    retention_hours: Annotated[float, option("H", "How long rows are kept.")] = 168
    poll_seconds: Annotated[float, option("P", "How long an idle agent's poll waits.")] = 20
    headroom: Annotated[float, option("X", "Factor on the stream's shards.")] = 1.25


@verb("plan agents", "--agents 1000 --events-per-second 100")
def plan_agents(
    call: Call,
    size: PlanOptions,
    prices: Annotated[Path | None, option("FILE", "A JSON file with prices that replace the defaults.")] = None,
) -> None:
    """Estimate shards, tables, queues, functions, quotas and the monthly cost."""
    given = agents.PlanInput(
        **asdict(size), prices={} if prices is None else json_object(read_file(str(prices), "prices"), "prices")
    )
    found = agents_plan.plan(given)
    call.show(found.document(), *([] if call.json else _parts(found, given)))


def _parts(found: agents.Plan, given: agents.PlanInput) -> Iterator[RenderableType]:
    document = found.document()
    for section in ("kinesis", "dynamodb", "sqs", "lambda", "sns_sqs", "cost_per_month"):
        rows = ([_words(name), _number(value)] for name, value in document[section].items())
        yield table([_words(section).upper(), ">"], rows)
        yield ""
    yield f"{counted(round(found.deliveries_per_second), 'delivery', 'deliveries')} a second"
    yield f"{found.cost_per_million_deliveries:,.2f} USD for a million deliveries"
    yield f"prices are an input: us-east-1 of {found.prices_as_of} unless given with --prices FILE"
    yield ""
    for quota in (quota for quota in found.quotas if quota["exceeded"]):
        yield f"ask AWS first: {quota['name']} {_number(quota['needed'])} (default {_number(quota['default'])})"
    changes = {
        "a window twice as long": replace(given, window_seconds=given.window_seconds * 2),
        "events half as large": replace(given, event_bytes=given.event_bytes / 2),
        "half as many listeners": replace(given, subscribers=given.subscribers / 2),
    }
    now = agents_plan.plan(given).cost_per_month["total"]
    saved = {name: now - agents_plan.plan(changed).cost_per_month["total"] for name, changed in changes.items()}
    best = max(saved, key=lambda name: saved[name])
    yield f"cheapest change: {best} saves {saved[best]:,.0f} USD a month"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
