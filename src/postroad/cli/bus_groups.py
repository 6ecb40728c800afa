"""`postroad bus group list|show|create|set`: who receives the events of a topic, and which of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.bus import TopicName, existing_topic
from postroad.cli.call import Call, add_verb, noun
from postroad.errors import InvalidInput, QueueNotFound
from postroad.settings import nearest

if TYPE_CHECKING:
    from postroad.bus import Group
    from postroad.topics import Topic
    from postroad.wiring import Backend

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group, such as billing.")]
ALL = "all"


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad bus group`."""
    place = noun("See and change which types the groups of a topic receive.", example="postroad bus group list orders")
    add_verb(place, "list", list_groups, example="postroad bus group list orders")
    add_verb(place, "show", show, example="postroad bus group show orders billing")
    add_verb(place, "create", create, example="postroad bus group create orders billing --types orders.placed")
    add_verb(place, "set", set_types, example="postroad bus group set orders billing --types all")
    app.add_typer(place, name="group")


def list_groups(call: Call, topic: TopicName) -> None:
    """List the groups of a topic with the types that each receives."""
    with call.backend() as backend:
        documents = [_document(group, backend) for group in _groups(backend, topic)]
    lines = [f"{each['group']}: {_types_text(each['types'])}, {each['waiting']:,} waiting" for each in documents]
    call.show({"items": documents}, *(lines or [f"no groups; postroad bus group create {topic} GROUP makes one"]))


def show(call: Call, topic: TopicName, group: GroupName) -> None:
    """Show the queue of a group and the types that it receives."""
    with call.backend() as backend:
        document = _document(_find(backend, topic, group), backend)
    call.show(
        document,
        f"queue: {document['queue']}",
        f"types: {_types_text(document['types'])}",
        f"waiting: {document['waiting']:,}",
    )


def create(
    call: Call,
    topic: TopicName,
    group: GroupName,
    types: Annotated[str | None, typer.Option(metavar="A,B", help="The types that it receives, or all.")] = None,
    fifo: Annotated[bool, typer.Option("--fifo", help="The topic keeps the order of each key.")] = False,
) -> None:
    """Create the queue of a group, so that events wait for it before its service first starts."""
    with call.backend() as backend:
        backend.bus(topic, group, fifo=fifo).close()
        port = _port(backend, topic, fifo=fifo)
        if types is not None:
            _set(backend, port, _find(backend, port.name, group), types)
        document = _document(_find(backend, port.name, group), backend)
    call.show(document, f"created {document['queue']}: {_types_text(document['types'])}")


def set_types(
    call: Call,
    topic: TopicName,
    group: GroupName,
    types: Annotated[str, typer.Option(metavar="A,B", help="The types that it receives, or all.")],
) -> None:
    """Change the types that a group receives from now on; what waits in its queue stays."""
    with call.backend() as backend:
        name = existing_topic(backend, topic)
        _set(backend, _port(backend, name), _find(backend, name, group), types)
        document = _document(_find(backend, name, group), backend)
    call.show(document, f"{group} receives {_types_text(document['types'])}")


def _set(backend: Backend, port: Topic, group: Group, types: str) -> None:
    from postroad.bus.groups import set_types as change

    wanted = [each.strip() for each in types.split(",") if each.strip()]
    if not wanted:
        raise InvalidInput(
            "types: is empty", field="types", remedy="Name types, as in --types orders.placed,orders.paid, or all."
        )
    change(port, backend.queue(group.queue), None if wanted == [ALL] else wanted)


def _port(backend: Backend, topic: str, *, fifo: bool = False) -> Topic:
    from postroad.bus.groups import names_of

    names = names_of(topic, fifo=fifo)
    return backend.topic(topic if topic.startswith("arn:") else names.topic, fifo=names.fifo)


def _groups(backend: Backend, topic: str) -> list[Group]:
    from postroad.bus.groups import groups_of, names_of

    name = existing_topic(backend, topic)
    return groups_of(_port(backend, name), names_of(name))


def _find(backend: Backend, topic: str, group: str) -> Group:
    groups = {each.name: each for each in _groups(backend, topic)}
    if group not in groups:
        raise QueueNotFound(
            f'topic "{topic}" has no group "{group}"',
            nearest=nearest(group, list(groups)),
            remedy=f"postroad bus group create {topic} {group} makes it.",
        )
    return groups[group]


def _document(group: Group, backend: Backend) -> dict[str, Any]:
    types = ALL if group.types is None else list(group.types)
    return {
        "group": group.name,
        "queue": group.queue,
        "types": types,
        "waiting": backend.queue(group.queue).stats().visible,
    }


def _types_text(types: str | list[str]) -> str:
    return "all types" if types == ALL else ", ".join(types)
