"""`postroad plan agents`: what so many agents would need and cost on AWS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.call import Call
from postroad.cli.verbs import add_verb
from postroad.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from postroad.agents.plan import Plan, PlanInput


def add_to(noun: typer.Typer) -> None:
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
        agents=agents, events_per_second=events_per_second, subscribers=subscribers, event_bytes=event_bytes,
        window_seconds=window_seconds, retention_hours=retention_hours, poll_seconds=poll_seconds, headroom=headroom,
        prices={} if prices is None else _prices(prices),
    )  # fmt: skip
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
