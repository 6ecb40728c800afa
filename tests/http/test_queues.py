"""Queues over HTTP."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.http.api import Api

from postroad.queues import OutgoingMessage, QueueSpec


def test_a_queue_is_made_once_and_is_the_same_afterwards(api: Api) -> None:
    made = api.client.put("/queues/orders", json={"visibility": 45})
    again = api.client.put("/queues/orders", json={"visibility": 45})

    assert (made.status_code, again.status_code) == (201, 200)
    assert made.json()["name"] == "orders"
    assert made.json()["settings"]["visibility"] == 45
    assert api.backend.queue_spec("orders").visibility == 45


def test_other_settings_are_a_conflict_that_names_the_differences(api: Api) -> None:
    api.client.put("/queues/orders", json={"visibility": 45})

    answer = api.client.put("/queues/orders", json={"visibility": 46})

    assert answer.status_code == 409
    assert answer.json()["type"] == "/errors/queue-exists"
    assert list(answer.json()["differences"]) == ["visibility"]
    assert api.backend.queue_spec("orders").visibility == 45


def test_the_name_says_whether_a_queue_is_fifo(api: Api) -> None:
    answer = api.client.put("/queues/orders.fifo", json={"content_dedup": True})

    assert answer.status_code == 201
    assert answer.json()["fifo"] is True


def test_a_queue_shows_what_it_holds_and_whose_dead_letters_it_takes(api: Api) -> None:
    api.client.put("/queues/dlq", json={})
    api.client.put("/queues/orders", json={"dead_letter": "dlq"})
    api.backend.queue("orders").send([OutgoingMessage("one")])

    orders = api.client.get("/queues/orders").json()
    dlq = api.client.get("/queues/dlq").json()

    assert set(orders) == {
        *("name", "fifo", "visible", "in_flight", "delayed", "oldest_age_seconds", "dead_letter"),
        *("settings", "sources"),
    }
    assert (orders["visible"], orders["dead_letter"], dlq["sources"]) == (1, "dlq", ["orders"])


def test_a_list_of_queues_is_walked_exactly_once_while_queues_come_and_go(api: Api) -> None:
    for number in range(10):
        api.backend.create_queue(QueueSpec(f"q{number}"))
    seen: list[str] = []
    page = api.client.get("/queues", params={"limit": 3}).json()
    while True:
        seen += [row["name"] for row in page["items"]]
        if page["next_cursor"] is None:
            break
        api.backend.delete_queue(seen[-1])
        api.backend.create_queue(QueueSpec(f"a{len(seen)}"))
        page = api.client.get("/queues", params={"limit": 3, "cursor": page["next_cursor"]}).json()

    assert seen == [f"q{number}" for number in range(10)]


def test_deleting_needs_the_name_twice(api: Api) -> None:
    api.client.put("/queues/orders", json={})

    missing = api.client.delete("/queues/orders")
    wrong = api.client.delete("/queues/orders", params={"confirm": "order"})
    kept = api.backend.queues()
    right = api.client.delete("/queues/orders", params={"confirm": "orders"})

    assert (missing.status_code, wrong.status_code, kept) == (400, 400, ["orders"])
    assert missing.json()["field"] == wrong.json()["field"] == "confirm"
    assert (right.status_code, right.content, api.backend.queues()) == (204, b"", [])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"confirm": "order", "reason": "tidy"}, "confirm"),
        ({"confirm": "orders"}, "reason"),
        ({"confirm": "orders", "reason": ""}, "reason"),
        ({"reason": "tidy"}, "confirm"),
    ],
)
def test_purging_needs_the_name_and_a_reason(api: Api, body: dict[str, str], field: str) -> None:
    api.backend.create_queue(QueueSpec("orders")).send([OutgoingMessage("one")])

    answer = api.client.post("/queues/orders/purge", json=body)

    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert api.backend.queue("orders").stats().visible == 1


def test_purging_says_how_many_are_gone(api: Api) -> None:
    api.backend.create_queue(QueueSpec("orders")).send([OutgoingMessage("one"), OutgoingMessage("two")])

    answer = api.client.post("/queues/orders/purge", json={"confirm": "orders", "reason": "tidy"})

    assert (answer.status_code, answer.json()) == (200, {"purged": 2})
    assert api.backend.queue("orders").stats().visible == 0


def test_a_purge_is_recorded_with_its_token_and_its_reason(api: Api) -> None:
    api.backend.create_queue(QueueSpec("orders")).send([OutgoingMessage("one")])

    api.client.post("/queues/orders/purge", json={"confirm": "orders", "reason": "tidy"})

    log = api.backend.audit_log()
    assert log is not None
    start, end = log.read()
    assert (start.action, start.target, start.detail["reason"]) == ("queue.purge.start", "orders", "tidy")
    assert (end.action, end.detail["purged"]) == ("queue.purge.end", 1)
    assert start.actor == end.actor
    assert start.actor == "admin"
    assert start.detail["request_id"]


def test_dead_letters_are_grouped_by_what_they_died_of(api: Api) -> None:
    dead = api.backend.create_queue(QueueSpec("dead"))
    orders = api.backend.create_queue(QueueSpec("orders", dead_letter="dead"))
    ids = {sent.message_id for sent in orders.send([OutgoingMessage("one"), OutgoingMessage("two")])}
    orders.reject(orders.receive(max_messages=2), reason="failed", error="ValueError: no 1")

    answer = api.client.get("/queues/dead/groups")

    (group,) = answer.json()["items"]
    assert answer.status_code == 200
    assert (answer.json()["scanned"], answer.json()["complete"]) == (2, True)
    assert (group["error"], group["count"], set(group["sample_ids"])) == ("ValueError: no 1", 2, ids)
    assert dead.stats().visible == 2


def test_groups_of_an_unknown_queue_are_not_found(api: Api) -> None:
    assert api.client.get("/queues/nowhere/groups").status_code == 404


@pytest.mark.parametrize("name", ["..%2fetc", "a.b", "q" * 81, ".fifo", "", "%00", "a%20b"])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_name_that_no_queue_can_have_touches_nothing(api: Api, tmp_path: Path, method: str, name: str) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())

    answer = api.client.request(method, f"/queues/{name}", json={} if method == "PUT" else None)

    assert answer.status_code in (400, 404)
    assert answer.headers["content-type"] == "application/problem+json"
    assert api.backend.queues() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"visibility": -1}, "visibility"),
        ({"visibility": 43_201}, "visibility"),
        ({"visibility": True}, "visibility"),
        ({"retention": 1}, "retention"),
        ({"name": "other"}, "name"),
        ({"max_recieves": 3}, "max_recieves"),
        ({"redrive_allow": []}, "redrive_allow"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_their_name(api: Api, settings: dict[str, object], field: str) -> None:
    answer = api.client.put("/queues/orders", json=settings)

    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert api.backend.queues() == []


def test_an_unknown_queue_is_404_with_the_nearest_name(api: Api) -> None:
    api.client.put("/queues/orders", json={})

    answer = api.client.get("/queues/ordrs")

    assert answer.status_code == 404
    assert answer.json()["type"] == "/errors/queue-not-found"
    assert "orders" in answer.json()["remedy"]


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        ("orders", "/ui/queues/orders"),
        (" orders.fifo ", "/ui/queues/orders.fifo"),
        ("order", "/ui/queues?name=order"),
        ("orders-", "/ui/events/orders-"),
        ("", "/ui/queues"),
    ],
)
def test_a_search_goes_to_a_queue_to_those_whose_names_begin_so_or_to_a_story(
    api: Api, wanted: str, place: str
) -> None:
    for name in ("orders", "orders.fifo", "ordersheet"):
        api.backend.create_queue(QueueSpec(name, fifo=name.endswith(".fifo")))

    answer = api.client.get("/ui/find", params={"q": wanted})

    assert (answer.status_code, answer.headers["Location"]) == (303, place)


def test_the_commands_on_the_empty_page_of_dead_letters_can_be_pasted_as_they_stand(api: Api) -> None:
    text = api.client.get("/ui/dead-letters").text
    commands = re.findall(r"<code>postroad (.*?)</code>", re.sub("</?span>", "", text))
    assert len(commands) == 2

    for command in commands:
        pasted = [sys.executable, "-m", "postroad", *shlex.split(command), "--url", api.context.settings.url]
        subprocess.run(pasted, check=True)

    assert api.backend.queue_spec("orders").dead_letter == "orders-dlq"
