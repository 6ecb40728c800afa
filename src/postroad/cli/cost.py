"""`postroad cost|plan`: what messages and agents cost on AWS, before anything is deployed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from postroad.cli.call import Call, add_verb
from postroad.cli.parameters import duration
from postroad.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from postroad.agents import Plan, PlanInput
    from postroad.operations import Consumption


def add_to(app: typer.Typer) -> None:
    """Make the verb part of the program."""
    add_verb(app, "cost", cost, example="postroad cost --messages-per-day 100000 --send-batch 10")


def cost(
    call: Call,
    messages_per_day: Annotated[
        float | None, typer.Option(metavar="N", help="Messages of a day; three sizes of deployment if not given.")
    ] = None,
    topology: Annotated[
        Literal["chat"] | None, typer.Option(metavar="TEMPLATE", help="chat: two queues, and a worker that polls both.")
    ] = None,
    send_batch: Annotated[int, typer.Option(metavar="N", help="Messages of one send, 1 to 10.")] = 1,
    receive_batch: Annotated[int, typer.Option(metavar="N", help="Messages of one receive, 1 to 10.")] = 10,
    delete_batch: Annotated[int, typer.Option(metavar="N", help="Messages of one delete, 1 to 10.")] = 10,
    body_bytes: Annotated[int, typer.Option(metavar="B", help="Size of a message; 64 KiB are one request.")] = 1_024,
    pollers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Receivers that wait on empty queues all day (one for each queue)."),
    ] = None,
    poll_wait: Annotated[
        float | None, typer.Option(parser=duration, metavar="S", help="How long one of their receives waits (20s).")
    ] = None,
    fifo: Annotated[bool, typer.Option("--fifo", help="Prices of FIFO queues.")] = False,
    transfer_gb: Annotated[float, typer.Option(metavar="GB", help="What leaves AWS.")] = 0.0,
    days: Annotated[float, typer.Option(metavar="D", help="Days of a month.")] = 30,
) -> None:
    """Estimate requests and dollars of a month on SQS."""
    consumed = _consumption(topology)
    passes, waits, wait = (1, 0, 20.0) if consumed is None else (consumed.queues, consumed.queues, consumed.poll_wait)
    options: dict[str, Any] = {
        "send_batch": send_batch,
        "receive_batch": receive_batch,
        "delete_batch": delete_batch,
        "body_bytes": body_bytes,
        "pollers": waits if pollers is None else pollers,
        "poll_wait": wait if poll_wait is None else poll_wait,
        "fifo": fifo,
        "transfer_gb": transfer_gb,
        "days": days,
    }
    if messages_per_day is None:
        _show_scales(call, passes, options)
        return
    from postroad.operations.cost import estimate_cost

    found = estimate_cost(messages_per_day * passes, **options)
    call.show(
        asdict(found),
        f"{found.requests_per_message:g} requests for each message of a queue",
        f"{found.requests:,} requests, {found.billable_requests:,} of them paid: ${found.request_usd:,.2f}",
        f"transfer: ${found.transfer_usd:,.2f}",
        f"a month: ${found.monthly_usd:,.2f}",
    )


def _show_scales(call: Call, passes: int, options: dict[str, Any]) -> None:
    from rich.text import Text

    from postroad.cli.tables import table
    from postroad.operations.cost import SCALES, estimate_cost

    items = [
        {
            "scale": scale,
            "messages_per_day": messages,
            "monthly_usd": estimate_cost(messages * passes, **options).monthly_usd,
        }
        for scale, messages in SCALES.items()
    ]
    rows = [[item["scale"], f"{item['messages_per_day']:,}", f"${item['monthly_usd']:,.2f}"] for item in items]
    call.show(
        {"items": items}, table(["SCALE", ">MESSAGES A DAY", ">A MONTH"], ([Text(str(c)) for c in r] for r in rows))
    )


def _consumption(topology: str | None) -> Consumption | None:
    if topology is None:
        return None
    from postroad.operations.cost import consumption
    from postroad.topology import chat_topology

    return consumption(chat_topology("project", "env"))


def add_plan_to(noun: typer.Typer) -> None:
    """Make the verbs part of the noun."""
    add_verb(noun, "agents", agents, example="postroad plan agents --agents 1000 --events-per-second 100")


def agents(
    call: Call,
    agents: Annotated[float, typer.Option(metavar="A", help="How many agents there are.")] = 1_000_000,
    events_per_second: Annotated[float, typer.Option(metavar="E", help="Events of all agents.")] = 100_000,
    subscribers: Annotated[float, typer.Option(metavar="S", help="Mean listeners of an event.")] = 10,
    event_bytes: Annotated[float, typer.Option(metavar="B", help="Mean size of an event.")] = 1_024,
    window_seconds: Annotated[float, typer.Option(metavar="W", help="Batching window of the functions.")] = 1,
    retention_hours: Annotated[float, typer.Option(metavar="H", help="How long rows are kept.")] = 168,
    poll_seconds: Annotated[float, typer.Option(metavar="P", help="Wait of an idle agent's poll.")] = 20,
    headroom: Annotated[float, typer.Option(metavar="X", help="Factor on the stream's shards.")] = 1.25,
    prices: Annotated[Path | None, typer.Option(metavar="FILE", help="Prices (JSON), any of them.")] = None,
) -> None:
    """Reckon shards, tables, queues, functions, quotas and the cost of a month."""
    from postroad.agents.plan import PlanInput, plan

    given = PlanInput(
        agents=agents,
        events_per_second=events_per_second,
        subscribers=subscribers,
        event_bytes=event_bytes,
        window_seconds=window_seconds,
        retention_hours=retention_hours,
        poll_seconds=poll_seconds,
        headroom=headroom,
        prices={} if prices is None else _prices(prices),
    )
    found = plan(given)
    call.show(found.document(), *([] if call.json else _parts(found, given)))


def _prices(path: Path) -> dict[str, float]:
    import msgspec

    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidInput(f"prices: {path} is not a file of JSON: {error}", field="prices") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"prices: {path} holds no JSON object", field="prices")
    return found


def _parts(found: Plan, given: PlanInput) -> Iterator[Table | Text]:
    from rich.text import Text

    from postroad.cli.tables import table

    document = found.document()
    for section in ("kinesis", "dynamodb", "sqs", "lambda", "sns_sqs", "cost_per_month"):
        rows = ([Text(name), Text(_number(value))] for name, value in document[section].items())
        yield table([section.upper().replace("_", " "), ">"], rows)
        yield Text()
    yield Text(f"{found.deliveries_per_second:,.0f} deliveries a second")
    yield Text(f"{found.cost_per_million_deliveries:,.2f} USD for a million deliveries")
    yield Text(f"prices are an input: us-east-1 of {found.prices_as_of} unless given with --prices FILE")
    yield Text()
    exceeded = [quota for quota in found.quotas if quota["exceeded"]]
    for quota in exceeded:
        yield Text(f"ask AWS first: {quota['name']} {_number(quota['needed'])} (default {_number(quota['default'])})")
    yield Text(f"cheapest change: {cheapest_change(given)}")


def cheapest_change(given: PlanInput) -> str:
    """Which halving or doubling saves most."""
    from dataclasses import replace

    from postroad.agents.plan import plan

    changes = {
        "a window twice as long": replace(given, window_seconds=given.window_seconds * 2),
        "events half as large": replace(given, event_bytes=given.event_bytes / 2),
        "half as many listeners": replace(given, subscribers=given.subscribers / 2),
    }
    now = plan(given).cost_per_month["total"]
    saved = {name: now - plan(changed).cost_per_month["total"] for name, changed in changes.items()}
    best = max(saved, key=lambda name: saved[name])
    return f"{best} saves {saved[best]:,.0f} USD a month"


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
