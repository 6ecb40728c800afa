"""`postroad agent`: create agents, connect them, and show what waits for them."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.call import Call, verb
from postroad.cli.display import table
from postroad.cli.output import confirm_yes
from postroad.cli.parameters import duration_option
from postroad.telemetry import counted, legible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.agents import Agents

AgentId = Annotated[str, typer.Argument(metavar="ID", help="The agent.")]
Listener = Annotated[str, typer.Argument(metavar="LISTENER", help="The agent that subscribes.")]
Producer = Annotated[str, typer.Argument(metavar="PRODUCER", help="The agent that publishes.")]
_MAX_OVERLAP = 86_400.0
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


@contextmanager
def agents_of(call: Call) -> Iterator[Agents]:
    """Open the agents of the backend that the settings name."""
    with call.backend() as backend:
        yield backend.agents(**call.settings().agents)


@verb("agent create", "ann --accept all")
def create(
    call: Call,
    agent_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Its id; by default a new one.")] = None,
    order: Annotated[
        str, typer.Option(metavar="O", help="Keep the order of each producer, or of all events: producer or total.")
    ] = "producer",
    accept: Annotated[
        str, typer.Option(metavar="A", help="Who may subscribe to it: listed, which are those with a grant, or all.")
    ] = "listed",
) -> None:
    """Create an agent and print its token, which is shown only once."""
    from postroad.views import AgentMade

    with agents_of(call) as agents:
        made = agents.register(agent_id, order=order, accept=accept)  # type: ignore[arg-type]  # checked there
    call.show(
        AgentMade(made.agent_id, made.token, made.created_at),
        f"created agent {made.agent_id}",
        f"token, shown only once: {made.token}",
    )


@verb("agent list", "--limit 50")
def list_agents(
    call: Call,
    limit: Annotated[int, typer.Option(metavar="N", help="At most this many, 1 to 100.")] = 20,
    cursor: Annotated[str | None, typer.Option(metavar="C", help="The `next_cursor` of the previous page.")] = None,
) -> None:
    """List agents, a page at a time."""
    from postroad.views import Page, agent_row

    with agents_of(call) as agents:
        page = agents.list(limit=limit, cursor=cursor)
    items = [agent_row(agent) for agent in page.items]
    rows = ([each.agent_id, each.order, each.accept, each.created_at] for each in items)
    shown = table(["AGENT", "ORDER", "ACCEPT", "CREATED"], rows, "no agents; make one with: postroad agent create")
    more = [] if page.next_cursor is None else [f"more with --cursor {legible(page.next_cursor)}"]
    call.show(Page(items, page.next_cursor), shown, *more)


@verb("agent show", "ann")
def show(call: Call, agent_id: AgentId) -> None:
    """Show an agent, its subscriptions and how many messages wait for it."""
    import msgspec

    from postroad.views import agent_detail, agent_stats

    with agents_of(call) as agents:
        document = agent_detail(agents.get(agent_id))
        stats = agent_stats(agents.stats(agent_id))
    shown = {**msgspec.to_builtins(document), **msgspec.to_builtins(stats)}
    del shown["subscriptions"]
    lines = [f"{_words(name)}: {'-' if value is None else value}" for name, value in shown.items()]
    subscriptions = [
        f"listens to {each.producer_id} ({each.state})"
        + (f": {', '.join(each.event_types)}" if each.event_types else "")
        for each in document.subscriptions
    ]
    call.show(document, *map(legible, [*lines, *subscriptions]))


def _words(name: str) -> str:
    """Return `in flight` for `inFlight`."""
    return re.sub("[A-Z]", lambda each: f" {each[0].lower()}", name)


@verb("agent token", "ann --overlap 0")
def token(
    call: Call,
    agent_id: AgentId,
    overlap: Annotated[float, duration_option("How long the previous token stays valid, up to 1d.")] = 600,
) -> None:
    """Give an agent a new token, which is shown only once; with --overlap 0 the previous one is revoked at once."""
    from datetime import timedelta

    from postroad.agents.model import now_text
    from postroad.arguments import check, seconds_between
    from postroad.views import AgentToken

    check(overlap, seconds_between(0, _MAX_OVERLAP), "overlap")
    with call.backend() as backend:
        made = backend.agents().rotate_token(agent_id, overlap=overlap)
        until = now_text(backend.clock.now() + timedelta(seconds=overlap))
    document = AgentToken(made, until)
    call.show(document, f"token, shown only once: {made}", f"the previous token is valid until {until}")


@verb("agent delete", "ann --yes", destructive=True)
def delete(call: Call, agent_id: AgentId, yes: Yes = False) -> None:
    """Delete an agent with its subscriptions and waiting messages; its id is never used again."""
    from postroad.views import AgentGone

    with agents_of(call) as agents:
        waiting = agents.stats(agent_id)
        confirm_yes(
            yes,
            f'deleting agent "{legible(agent_id)}"',
            lambda: (
                f'deletes "{legible(agent_id)}" with {counted(waiting.visible + waiting.in_flight, "waiting message")}'
            ),
        )
        gone = agents.delete(agent_id)
    document = AgentGone(gone.discarded, gone.subscriptions, gone.subscribers)
    call.show(document, f"deleted {legible(agent_id)} with {counted(gone.discarded, 'message')}")


@verb("agent subscribe", "bob ann --type 'order.*'")
def subscribe(
    call: Call,
    listener: Listener,
    producer: Producer,
    type_: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="T", help="Only events of this type, exact or prefix.*; repeatable."),
    ] = None,
) -> None:
    """Subscribe an agent to another one, or change the event types of its subscription."""
    with agents_of(call) as agents:
        new = agents.subscribe(listener, producer, event_types=type_ or None)
    types = f" ({', '.join(type_)})" if type_ else ""
    call.show({"subscribed": new}, legible(f"{listener} {'now' if new else 'already'} listens to {producer}{types}"))


@verb("agent unsubscribe", "bob ann")
def unsubscribe(
    call: Call,
    listener: Listener,
    producer: Producer,
    discard: Annotated[bool, typer.Option("--discard", help="Delete the waiting messages too.")] = False,
) -> None:
    """End a subscription."""
    with agents_of(call) as agents:
        ended = agents.unsubscribe(listener, producer, discard=discard)
    result = "no longer listens" if ended else "did not listen"
    call.show({"unsubscribed": ended}, legible(f"{listener} {result} to {producer}"))


@verb("agent grant", "ann bob")
def grant(call: Call, producer: Producer, listener: Listener) -> None:
    """Allow a listener to subscribe itself to a producer."""
    with agents_of(call) as agents:
        agents.grant(producer, listener)
    call.show({"granted": True}, f"{listener} may listen to {producer}")


@verb("agent pause", "bob ann")
def pause(call: Call, listener: Listener, producer: Producer) -> None:
    """Hold a producer's events back from a listener; they are kept."""
    with agents_of(call) as agents:
        agents.pause(listener, producer)
    call.show({"state": "paused"}, f"events of {producer} are held back from {listener}")


@verb("agent resume", "bob ann")
def resume(call: Call, listener: Listener, producer: Producer) -> None:
    """Deliver the held events, before any newer ones."""
    with agents_of(call) as agents:
        agents.resume(listener, producer)
    call.show({"state": "active"}, f"events of {producer} are delivered to {listener}")


@verb("agent replay", "bob ann --since 2025-07-01T12:00:00Z")
def replay(
    call: Call,
    listener: Listener,
    producer: Producer,
    since: Annotated[str, typer.Option(metavar="TIME", help="Events since this time.")] = "trim_horizon",
) -> None:
    """Deliver a producer's events to a listener again."""
    from postroad.views import Replayed

    with agents_of(call) as agents:
        replayed = agents.replay(listener, producer, since=since)
    call.show(Replayed(replayed), f"delivered {counted(replayed, 'event')} again")


@verb("agent provision", "--url aws://eu-central-1")
def provision(call: Call) -> None:
    """Create the tables, streams and queues that are missing."""
    with agents_of(call) as agents:
        agents.provision()
    call.show({"provisioned": True}, "everything that agents need exists")


@verb("agent dead", "bob")
def dead(
    call: Call, agent_id: AgentId, limit: Annotated[int, typer.Option(metavar="N", help="At most this many.")] = 10
) -> None:
    """List an agent's dead letters, oldest first."""
    from postroad.views import Listed, agent_dead_letter

    with agents_of(call) as agents:
        items = [agent_dead_letter(each) for each in agents.dead_letters(agent_id, limit=limit)]
    lines = [
        legible(f"{each.event_id}  {each.event_type} of {each.agent_id}: {each.error or each.reason or '-'}")
        for each in items
    ]
    call.show(Listed(items), *(lines or ["no dead letters"]))


@verb("agent redrive", "bob")
def redrive(
    call: Call,
    agent_id: AgentId,
    limit: Annotated[int | None, typer.Option(metavar="N", help="At most this many.")] = None,
    yes: Yes = False,
) -> None:
    """Send an agent's dead letters back to the end of its queue, without asking; `--yes` has no effect."""
    from postroad.views import Redriven

    del yes
    with agents_of(call) as agents:
        redriven = agents.redrive(agent_id, limit=limit)
    nothing = f"nothing to redrive: {legible(agent_id)} has no dead letters"
    call.show(Redriven(redriven), f"redrove {counted(redriven, 'dead letter')}" if redriven else nothing)
