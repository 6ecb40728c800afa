"""`postroad cost`: what messages cost on SQS, before anything is deployed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from postroad.cli.call import Call
from postroad.cli.durations import duration
from postroad.cli.verbs import add_verb

if TYPE_CHECKING:
    from postroad.operations.cost import Consumption


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
        "send_batch": send_batch, "receive_batch": receive_batch, "delete_batch": delete_batch,
        "body_bytes": body_bytes, "pollers": waits if pollers is None else pollers,
        "poll_wait": wait if poll_wait is None else poll_wait,
        "fifo": fifo, "transfer_gb": transfer_gb, "days": days,
    }  # fmt: skip
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
