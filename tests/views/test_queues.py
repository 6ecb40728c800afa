"""The documents of queues and messages on a real backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from postroad.errors import QueueNotFound
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.views import leased, open_queue, overview, peeked, queue_detail, queue_row
from postroad.wiring import Backend, connect


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with connect("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/x.db") as opened:
        opened.create_queue(QueueSpec("orders-dlq", redrive_allow=("orders",)))
        opened.create_queue(QueueSpec("orders", dead_letter="orders-dlq"))
        yield opened


def test_a_row_counts_what_the_queue_holds(backend: Backend) -> None:
    backend.queue("orders").send([OutgoingMessage("a"), OutgoingMessage("b"), OutgoingMessage("c", delay=60)])
    backend.queue("orders").receive(max_messages=1)

    row = msgspec.to_builtins(queue_row(overview(backend, "orders")))

    assert row.pop("oldest_age_seconds") >= 0
    assert row == {
        "name": "orders",
        "fifo": False,
        "visible": 1,
        "in_flight": 1,
        "delayed": 1,
        "dead_letter": "orders-dlq",
    }


def test_the_detail_adds_every_setting_and_the_sources(backend: Backend) -> None:
    detail = msgspec.to_builtins(queue_detail(backend, "orders-dlq"))

    assert detail["settings"].keys() == {
        *("name", "fifo", "visibility", "retention", "delay", "receive_wait", "max_message_bytes", "dead_letter"),
        *("max_receives", "content_dedup", "dedup_scope", "redrive_allow", "auto_delete_after"),
    }
    assert detail["settings"]["redrive_allow"] == ["orders"]
    assert detail["sources"] == ["orders"]


def test_a_queue_that_does_not_exist_is_refused_with_the_nearest_name(backend: Backend) -> None:
    with pytest.raises(QueueNotFound, match='queue "ordres" does not exist') as caught:
        open_queue(backend, "ordres")

    assert caught.value.nearest == "orders"


def test_a_peeked_message_shows_its_body_only_when_asked(backend: Backend) -> None:
    backend.queue("orders").send([OutgoingMessage("snow \u2603", {"EventType": "placed"})])
    [message] = backend.queue("orders").peek()

    without, with_body = (msgspec.to_builtins(peeked(message, body=body)) for body in (False, True))

    assert without.keys() == {"message_id", "attributes", "group", "receive_count", "sent_at", "state", "size"}
    assert with_body == {**without, "body": "snow \u2603"}
    assert (without["size"], without["attributes"]) == (8, {"EventType": "placed"})
    assert without["sent_at"].endswith("Z")


def test_a_delivery_carries_the_receipt_that_settles_it(backend: Backend) -> None:
    backend.queue("orders").send([OutgoingMessage("a")])
    [delivery] = backend.queue("orders").receive()

    document = leased(delivery)

    assert (document.body, document.receipt, document.receive_count) == ("a", delivery.receipt, 1)
