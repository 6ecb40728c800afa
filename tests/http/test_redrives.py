"""`POST /queues/{queue}/redrive`: dead letters moved back as an operation."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.http.api import Api, Serve
from tests.waiting import eventually

from postroad import OutgoingMessage, QueueSpec
from postroad.operations import AuditLog
from postroad.queues import Queue
from postroad.settings import audit_path


def dead_letters(api: Api, count: int, *, error: str = "Boom: no") -> Queue:
    """A queue whose dead letters are so many."""
    api.backend.create_queue(QueueSpec("orders-dlq"))
    queue = api.backend.create_queue(QueueSpec("orders", dead_letter="orders-dlq", max_receives=2))
    while count > 0:
        queue.send([OutgoingMessage(str(n), {"EventType": f"t{n % 2}"}) for n in range(min(10, count))])
        queue.reject(queue.receive(), reason="handler_failed", error=error)
        count -= 10
    return queue


def ended(api: Api, operation_id: str) -> dict[str, Any]:
    eventually(lambda: api.client.get(f"/operations/{operation_id}").json()["state"] != "running")
    return dict(api.client.get(f"/operations/{operation_id}").json())


def begin(api: Api, **body: Any) -> str:
    answer = api.client.post("/queues/orders-dlq/redrive", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["operation_id"])


def held(api: Api, name: str) -> int:
    stats = api.backend.queue(name).stats()
    return stats.visible + stats.in_flight + stats.delayed


def test_a_dry_run_counts_and_changes_nothing(api: Api) -> None:
    dead_letters(api, 4)

    answer = api.client.post("/queues/orders-dlq/redrive", json={"dry_run": True, "match": {"event_type": "t1"}})

    assert answer.status_code == 200
    report = answer.json()
    assert (report["status"], report["matched"], report["moved"]) == ("dry_run", 2, 0)
    assert report["destinations"] == {"orders": 2}
    assert report["skipped"] == {}
    assert (held(api, "orders-dlq"), held(api, "orders")) == (4, 0)


def test_dead_letters_go_back_and_the_operation_says_so(api: Api) -> None:
    dead_letters(api, 20)

    api.client.headers["X-Request-Id"] = "asked-once"
    document = ended(api, begin(api, reason="fixed"))

    assert (document["state"], document["moved"], document["matched"], document["error"]) == ("done", 20, 20, None)
    assert document["report"]["status"] == "done"
    assert document["report"]["destinations"] == {"orders": 20}
    assert (held(api, "orders-dlq"), held(api, "orders")) == (0, 20)
    records = [each for each in AuditLog(audit_path(api.backend.url)).read() if each.action.startswith("queue.redrive")]
    assert [(each.action, each.actor, each.target) for each in records] == [
        ("queue.redrive.start", "admin", "orders-dlq"),
        ("queue.redrive.end", "admin", "orders-dlq"),
    ]
    assert [each.detail["request_id"] for each in records] == ["asked-once", "asked-once"]


@pytest.mark.parametrize(
    ("body", "moved"),
    [
        ({"limit": 3}, 3),
        ({"match": {"event_type": "t0"}}, 5),
        ({"match": {"fingerprint": "nobody"}}, 0),
        ({"to": "elsewhere"}, 10),
    ],
)
def test_only_what_is_asked_for_moves(api: Api, body: dict[str, Any], moved: int) -> None:
    dead_letters(api, 10)
    api.backend.create_queue(QueueSpec("elsewhere"))

    document = ended(api, begin(api, **body))

    assert document["moved"] == moved
    assert held(api, "orders-dlq") == 10 - moved
    assert held(api, body.get("to", "orders")) == moved


def test_ids_and_the_fingerprint_of_a_group_choose_too(api: Api) -> None:
    dead_letters(api, 6)
    group, _ = api.client.get("/queues/orders-dlq/groups").json()["items"]

    by_id = ended(api, begin(api, match={"ids": group["sample_ids"][:2]}))
    by_group = ended(api, begin(api, match={"fingerprint": group["fingerprint"]}))

    assert (by_id["moved"], by_group["moved"]) == (2, 1)


def test_a_run_whose_canary_comes_back_is_stopped_and_says_why(api: Api) -> None:
    queue = dead_letters(api, 10)
    over = threading.Event()

    def refuse() -> None:
        while not over.is_set():
            queue.reject(queue.receive(wait=0.1), reason="handler_failed", error="Boom: again")

    consumer = threading.Thread(target=refuse)
    consumer.start()
    document = ended(api, begin(api, canary=2))
    over.set()
    consumer.join()

    assert (document["state"], document["report"]["status"]) == ("stopped", "canary_failed")
    assert document["moved"] == 2
    assert "canary" in document["error"]
    assert held(api, "orders-dlq") == 10


def test_a_server_that_stops_leaves_the_rest_to_the_next_one(serve: Serve) -> None:
    first = serve()
    dead_letters(first, 70)
    operation_id = begin(first, rate=10, limit=65)
    eventually(lambda: first.client.get(f"/operations/{operation_id}").json()["moved"] >= 10)
    first.stop()
    between = held(first, "orders")

    second = serve()
    second.context.operations.resume()
    document = ended(second, operation_id)

    assert 10 <= between < 65
    assert (document["state"], document["moved"], document["report"]["moved"]) == ("done", 65, 65)
    assert (held(second, "orders"), held(second, "orders-dlq")) == (65, 5)


def test_a_repeated_request_begins_one_redrive(api: Api) -> None:
    dead_letters(api, 3)
    headers = {"Idempotency-Key": "k"}

    first, again = (api.client.post("/queues/orders-dlq/redrive", json={}, headers=headers) for _ in range(2))

    assert first.json() == again.json()
    assert again.headers["Idempotency-Replayed"] == "true"
    assert ended(api, first.json()["operation_id"])["moved"] == 3


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"rate": 0}, "rate"),
        ({"rate": -1}, "rate"),
        ({"canary": -1}, "canary"),
        ({"limit": True}, "limit"),
        ({"match": {"ids": "a"}}, "match.ids"),
        ({"match": {"idz": []}}, "idz"),
        ({"fast": 1}, "fast"),
        ({"dry_run": "yes"}, "dry_run"),
    ],
)
def test_wrong_fields_are_400_and_nothing_moves(api: Api, body: dict[str, Any], field: str) -> None:
    dead_letters(api, 1)

    answer = api.client.post("/queues/orders-dlq/redrive", json=body)

    assert answer.status_code == 400
    assert field in str(answer.json().get("field"))
    assert held(api, "orders-dlq") == 1


@pytest.mark.parametrize(
    ("queue", "to", "slug"),
    [
        ("lonely", None, "ambiguous-source"),
        ("empty", None, "ambiguous-source"),
        ("orders-dlq", "orders-dlq", "invalid-name"),
        ("orders-dlq", "other.fifo", "configuration"),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_destination_that_cannot_be_is_400_at_once(
    api: Api, queue: str, to: str | None, slug: str, dry_run: bool
) -> None:
    dead_letters(api, 1)
    api.backend.create_queue(QueueSpec("empty"))
    api.backend.create_queue(QueueSpec("lonely")).send([OutgoingMessage("x")])
    api.backend.create_queue(QueueSpec("other.fifo", fifo=True))

    answer = api.client.post(f"/queues/{queue}/redrive", json={"to": to, "dry_run": dry_run})

    assert answer.status_code == 400, answer.text
    assert (answer.json()["field"], answer.json()["type"].rpartition("/")[2]) == ("to", slug)
    assert answer.json()["remedy"]
    assert (held(api, "lonely"), held(api, "orders-dlq")) == (1, 1)


def test_dead_letters_that_name_their_queue_go_back_although_it_has_other_dead_letters_now(api: Api) -> None:
    dead_letters(api, 2)
    api.backend.create_queue(QueueSpec("new-dlq"))
    api.backend.update_queue(QueueSpec("orders", dead_letter="new-dlq", max_receives=2))

    document = ended(api, begin(api))

    assert (document["state"], document["report"]["destinations"]) == ("done", {"orders": 2})


def test_queues_that_do_not_exist_are_404_with_the_nearest_name(api: Api) -> None:
    dead_letters(api, 1)

    unknown = api.client.post("/queues/orders-dlx/redrive", json={})
    nowhere = api.client.post("/queues/orders-dlq/redrive", json={"to": "oders"})

    assert (unknown.status_code, nowhere.status_code) == (404, 404)
    assert "orders-dlq" in unknown.json()["remedy"]
    assert api.client.post("/queues/a.b/redrive", json={}).status_code in (400, 404)
    assert held(api, "orders-dlq") == 1


def test_it_needs_the_scope_operate(api: Api) -> None:
    dead_letters(api, 1)
    with api.as_caller(api.token("publish")) as publisher:
        assert publisher.post("/queues/orders-dlq/redrive", json={"dry_run": True}).status_code == 403
    with api.as_caller(api.token("operate")) as operator:
        assert operator.post("/queues/orders-dlq/redrive", json={"dry_run": True}).status_code == 200


def test_a_read_only_server_moves_nothing(serve: Serve) -> None:
    api = serve(read_only=True)
    dead_letters(api, 1)

    answer = api.client.post("/queues/orders-dlq/redrive", json={})

    assert (answer.status_code, answer.json()["type"]) == (403, "/errors/read-only")
