"""`GET /map`: how everything is connected."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.http.api import Api, Serve
from tests.http.village import Village
from tests.waiting import eventually

from postroad import Bus, OutgoingMessage, QueueSpec, event
from postroad.dashboard import MOST_QUEUES
from postroad.outbox import Outbox


@event(name="map.placed")
class Placed:
    n: int


@pytest.fixture
def module() -> Iterator[str]:
    """A loaded module that declares a bus with a handler."""
    made = ModuleType("map_module")
    bus = Bus("shop", group="billing")

    @bus.on(Placed)
    def charge(event: Placed) -> None:
        """Do nothing."""

    made.bus = made.again = bus  # type: ignore[attr-defined]
    sys.modules["map_module"] = made
    yield "map_module"
    del sys.modules["map_module"]


def edges(document: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {(edge["from"], edge["to"], edge["kind"]) for edge in document["edges"]}


def test_an_empty_store_has_an_empty_map(api: Api) -> None:
    document = api.client.get("/map").json()

    assert [node for node in document["nodes"] if node["kind"] not in ("handler", "stream")] == []
    assert document["edges"] == []


def test_topics_queues_dead_letters_handlers_and_the_outbox_are_joined(
    serve: Serve, module: str, tmp_path: Path
) -> None:
    dsn = f"sqlite:///{tmp_path}/app.db"
    with Outbox.open(dsn) as outbox:
        outbox.init()
    api = serve(load=(module,), outbox_dsn=dsn, outbox_topic="shop")
    with api.backend.bus("shop", "billing"):
        api.backend.queue("shop--billing").send([OutgoingMessage("a"), OutgoingMessage("b")])
        api.backend.stream("clicks")

        document = api.client.get("/map").json()

    nodes = {node["id"]: node for node in document["nodes"]}
    assert nodes["queue:shop--billing"] == {
        "id": "queue:shop--billing",
        "kind": "queue",
        "name": "shop--billing",
        "depth": 2,
    }
    assert nodes["topic:shop"]["depth"] is None
    assert nodes["queue:shop--billing--dead"]["kind"] == "dead_letter"
    assert nodes["stream:clicks"]["kind"] == "stream"
    assert nodes["outbox"] == {"id": "outbox", "kind": "outbox", "name": "outbox", "depth": 0}
    [handler] = [name for name in nodes if name.startswith("handler:shop--billing:")]
    assert handler.endswith("charge")
    assert edges(document) == {
        ("topic:shop", "queue:shop--billing", "subscription"),
        ("queue:shop--billing", "queue:shop--billing--dead", "dead_letter"),
        ("queue:shop--billing", handler, "handle"),
        ("outbox", "topic:shop", "publish"),
    }


def test_agents_are_joined_to_those_they_listen_to(village: Village) -> None:
    village.agents.subscribe("bob", "ann")

    document = village.api.client.get("/map").json()

    assert {"agent:ann", "agent:bob"} <= {node["id"] for node in document["nodes"]}
    assert ("agent:ann", "agent:bob", "subscription") in edges(document)


def test_every_edge_joins_two_nodes(api: Api) -> None:
    api.backend.create_queue(QueueSpec("dead"))
    api.backend.create_queue(QueueSpec("orders", dead_letter="dead"))
    api.backend.topic("news").subscribe(api.backend.queue("orders"))
    api.backend.delete_queue("dead")

    document = api.client.get("/map").json()

    ids = {node["id"] for node in document["nodes"]}
    assert all({edge["from"], edge["to"]} <= ids for edge in document["edges"])
    assert ("topic:news", "queue:orders", "subscription") in edges(document)


def test_of_many_queues_the_page_draws_those_that_hold_most_with_their_topics_and_dead_letters(api: Api) -> None:
    for number in range(MOST_QUEUES):
        api.backend.create_queue(QueueSpec(f"small-{number:02}"))
        api.backend.topic(f"quiet-{number:02}").subscribe(api.backend.queue(f"small-{number:02}"))
    api.backend.create_queue(QueueSpec("dead"))
    queue = api.backend.create_queue(QueueSpec("orders", dead_letter="dead"))
    queue.send([OutgoingMessage("a")] * 3)
    api.backend.topic("news").subscribe(queue)

    def drawn() -> set[str]:
        return set(re.findall(r'data-node="([^"]+)"', api.client.get("/ui/map").text))

    # What is drawn may be a moment old.
    eventually(lambda: {"queue:orders", "queue:dead", "topic:news"} <= drawn())
    assert sum(node.startswith("queue:") for node in drawn()) == MOST_QUEUES
    # Tasks that other tests registered may be among them.
    assert re.search(r"And \d+ more, which hold less", api.client.get("/ui/map").text)
    assert len(api.client.get("/map").json()["nodes"]) >= 2 * MOST_QUEUES + 3


def test_it_needs_a_token(api: Api) -> None:
    with api.as_caller(None) as stranger:
        assert stranger.get("/map").status_code == 401
