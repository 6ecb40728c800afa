"""`postroad agent`: make agents, connect them, and see what waits for them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.call import Call, add_verb
from postroad.cli.output import confirm_yes
from postroad.cli.parameters import duration
from postroad.telemetry import legible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.agents import Agents
    from postroad.views import AgentRow

AgentId = Annotated[str, typer.Argument(metavar="ID", help="The agent.")]
Listener = Annotated[str, typer.Argument(metavar="LISTENER", help="The agent that listens.")]
Producer = Annotated[str, typer.Argument(metavar="PRODUCER", help="The agent that is heard.")]
_MAX_OVERLAP = 86_400.0
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def add_to(noun: typer.Typer) -> None:
    """Make the verbs part of the noun."""
    add_verb(noun, "create", create, example="postroad agent create ann --accept all")
    add_verb(noun, "list", list_agents, example="postroad agent list")
    add_verb(noun, "show", show, example="postroad agent show ann")
    add_verb(noun, "token", token, example="postroad agent token ann --overlap 0")
    add_verb(noun, "delete", delete, example="postroad agent delete ann --yes", destructive=True)
    add_verb(noun, "subscribe", subscribe, example="postroad agent subscribe bob ann")
    add_verb(noun, "unsubscribe", unsubscribe, example="postroad agent unsubscribe bob ann")
    add_verb(noun, "grant", grant, example="postroad agent grant ann bob")
    add_verb(noun, "pause", pause, example="postroad agent pause bob ann")
    add_verb(noun, "resume", resume, example="postroad agent resume bob ann")
    add_verb(noun, "replay", replay, example="postroad agent replay bob ann --since 2025-07-01T12:00:00Z")
    add_verb(noun, "provision", provision, example="postroad agent provision")
    add_verb(noun, "dead", dead, example="postroad agent dead bob")
    add_verb(noun, "redrive", redrive, example="postroad agent redrive bob")


@contextmanager
def agents_of(call: Call) -> Iterator[Agents]:
    """The agents of the backend that the settings name."""
    with call.backend() as backend:
        yield backend.agents()


def create(
    call: Call,
    agent_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Its id; made when left out.")] = None,
    order: Annotated[str, typer.Option(metavar="O", help="'producer' or 'total'.")] = "producer",
    accept: Annotated[str, typer.Option(metavar="A", help="'listed' or 'all'.")] = "listed",
) -> None:
    """Make an agent and print its token, which is shown this once."""
    from postroad.views import AgentMade

    with agents_of(call) as agents:
        made = agents.register(agent_id, order=order, accept=accept)  # type: ignore[arg-type]  # checked there
    call.show(
        AgentMade(made.agent_id, made.token, made.created_at),
        f"made agent {made.agent_id}",
        f"token, shown this once: {made.token}",
    )


def list_agents(
    call: Call,
    limit: Annotated[int, typer.Option(metavar="N", help="How many, 1 to 100.")] = 20,
    cursor: Annotated[str | None, typer.Option(metavar="C", help="`next_cursor` of the page before.")] = None,
) -> None:
    """List agents, a page at a time."""
    from postroad.views import AgentPage, agent_row

    with agents_of(call) as agents:
        page = agents.list(limit=limit, cursor=cursor)
    items = [agent_row(agent) for agent in page.items]
    more = [] if page.next_cursor is None else [f"more with --cursor {legible(page.next_cursor)}"]
    call.show(AgentPage(items, page.next_cursor), *_table(items, "no agents"), *more)


def show(call: Call, agent_id: AgentId) -> None:
    """Show an agent, whom it listens to and what waits for it."""
    import msgspec

    from postroad.views import agent_detail, agent_stats

    with agents_of(call) as agents:
        document = agent_detail(agents.get(agent_id))
        stats = agent_stats(agents.stats(agent_id))
    shown = {**msgspec.to_builtins(document), **msgspec.to_builtins(stats)}
    lines = [f"{name}: {value}" for name, value in shown.items() if name != "subscriptions"]
    heard = [f"listens to {each.producer_id} ({each.state})" for each in document.subscriptions]
    call.show(document, *map(legible, [*lines, *heard]))


def token(
    call: Call,
    agent_id: AgentId,
    overlap: Annotated[
        float, typer.Option(parser=duration, metavar="S", help="How long the former token still opens, up to 1d.")
    ] = 600,
) -> None:
    """Give an agent another token, which is shown this once; with --overlap 0 the former is void at once."""
    from datetime import timedelta

    from postroad.agents.rules import now_text
    from postroad.arguments import check, seconds_between
    from postroad.views import AgentToken

    check(overlap, seconds_between(0, _MAX_OVERLAP), "overlap")
    with call.backend() as backend:
        made = backend.agents().rotate_token(agent_id, overlap=overlap)
        until = now_text(backend.clock.now() + timedelta(seconds=overlap))
    document = AgentToken(made, until)
    call.show(document, f"token, shown this once: {made}", f"the former token opens until {until}")


def delete(call: Call, agent_id: AgentId, yes: Yes = False) -> None:
    """Remove an agent with its subscriptions and what waits for it; its id is never given again."""
    from postroad.views import AgentGone

    with agents_of(call) as agents:
        waiting = agents.stats(agent_id)
        confirm_yes(
            yes,
            f'deleting agent "{legible(agent_id)}"',
            lambda: f'removes "{legible(agent_id)}" with {waiting.visible + waiting.in_flight:,} waiting messages',
        )
        gone = agents.delete(agent_id)
    document = AgentGone(gone.discarded, gone.subscriptions, gone.subscribers)
    call.show(document, f"removed {legible(agent_id)}; {gone.discarded:,} messages went with it")


def subscribe(call: Call, listener: Listener, producer: Producer) -> None:
    """Let an agent hear another one from now on."""
    with agents_of(call) as agents:
        new = agents.subscribe(listener, producer)
    call.show({"subscribed": new}, f"{listener} {'now' if new else 'already'} listens to {producer}")


def unsubscribe(
    call: Call,
    listener: Listener,
    producer: Producer,
    discard: Annotated[bool, typer.Option("--discard", help="What waits goes too.")] = False,
) -> None:
    """Stop an agent from hearing another one."""
    with agents_of(call) as agents:
        ended = agents.unsubscribe(listener, producer, discard=discard)
    words = "no longer listens" if ended else "did not listen"
    call.show({"unsubscribed": ended}, legible(f"{listener} {words} to {producer}"))


def grant(call: Call, producer: Producer, listener: Listener) -> None:
    """Let a listener subscribe to a producer by itself."""
    with agents_of(call) as agents:
        agents.grant(producer, listener)
    call.show({"granted": True}, f"{listener} may listen to {producer}")


def pause(call: Call, listener: Listener, producer: Producer) -> None:
    """Withhold a producer's events from a listener; they are kept."""
    with agents_of(call) as agents:
        agents.pause(listener, producer)
    call.show({"state": "paused"}, f"{producer} is withheld from {listener}")


def resume(call: Call, listener: Listener, producer: Producer) -> None:
    """Deliver what was withheld, before anything newer."""
    with agents_of(call) as agents:
        agents.resume(listener, producer)
    call.show({"state": "active"}, f"{producer} is delivered to {listener}")


def replay(
    call: Call,
    listener: Listener,
    producer: Producer,
    since: Annotated[str, typer.Option(metavar="TIME", help="From this time on.")] = "trim_horizon",
) -> None:
    """Deliver a producer's events to a listener again."""
    from postroad.views import Replayed

    with agents_of(call) as agents:
        replayed = agents.replay(listener, producer, since=since)
    call.show(Replayed(replayed), f"{replayed:,} events are delivered again")


def provision(call: Call) -> None:
    """Make what is missing of tables, streams and queues."""
    with agents_of(call) as agents:
        agents.provision()
    call.show({"provisioned": True}, "everything that agents need is there")


def dead(
    call: Call,
    agent_id: AgentId,
    limit: Annotated[int, typer.Option(metavar="N", help="How many.")] = 10,
) -> None:
    """Show what failed too often, oldest first."""
    from postroad.views import AgentDeadLetterPage, agent_dead_letter

    with agents_of(call) as agents:
        items = [agent_dead_letter(each) for each in agents.dead_letters(agent_id, limit=limit)]
    lines = [
        legible(f"{each.event_id}  {each.event_type} of {each.agent_id}: {each.error or each.reason}") for each in items
    ]
    call.show(AgentDeadLetterPage(items), *(lines or ["no dead letters"]))


def redrive(
    call: Call,
    agent_id: AgentId,
    limit: Annotated[int | None, typer.Option(metavar="N", help="At most so many.")] = None,
    yes: Yes = False,
) -> None:
    """Put an agent's dead letters behind what waits for it; `--yes` is taken and not needed: nothing is lost."""
    from postroad.views import Redriven

    del yes
    with agents_of(call) as agents:
        redriven = agents.redrive(agent_id, limit=limit)
    call.show(Redriven(redriven), f"{redriven:,} dead letters are back")


def _table(items: list[AgentRow], none: str) -> list[Any]:
    from rich.text import Text

    from postroad.cli.tables import table

    if not items:
        return [f"{none}; make one with: postroad agent create"]
    rows = ((each.agent_id, each.order, each.accept, each.created_at) for each in items)
    return [table(["AGENT", "ORDER", "ACCEPT", "MADE"], ([Text(cell) for cell in row] for row in rows))]
