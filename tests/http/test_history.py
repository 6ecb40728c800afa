"""`GET /timeline` and `GET /audit`."""

from __future__ import annotations

from typing import Any

import pytest
from tests.http.api import Api, Serve

from postroad import QueueSpec

PENDING, CANCELLED = "Task Pending", "Task Cancelled"


@pytest.fixture
def busy(api: Api) -> Api:
    """A server whose journal holds two tasks, of which one was cancelled."""
    for request_id in ("a", "b"):
        assert api.client.post("/tasks", json={"name": "resize", "requestId": request_id}).status_code == 202
    assert api.client.post("/tasks/a/cancel").status_code == 200
    return api


@pytest.mark.parametrize(
    ("filters", "index", "found"),
    [
        ({}, "PK", [("a", CANCELLED), ("b", PENDING), ("a", PENDING)]),
        ({"entity": "TASK#a"}, "GSI1", [("a", CANCELLED), ("a", PENDING)]),
        ({"app": "postroad"}, "GSI2", [("a", CANCELLED), ("b", PENDING), ("a", PENDING)]),
        ({"app": "postroad", "entity": "TASK#b"}, "GSI3", [("b", PENDING)]),
        ({"type": PENDING}, "GSI4", [("b", PENDING), ("a", PENDING)]),
        ({"type": PENDING, "entity": "TASK#a"}, "GSI5", [("a", PENDING)]),
        ({"type": CANCELLED, "app": "postroad"}, "GSI6", [("a", CANCELLED)]),
        ({"type": PENDING, "app": "postroad", "entity": "TASK#b"}, "GSI7", [("b", PENDING)]),
        ({"tenant": "nobody"}, "PK", []),
        ({"tenant": "default", "type": "", "app": ""}, "PK", [("a", CANCELLED), ("b", PENDING), ("a", PENDING)]),
    ],
)
def test_every_set_of_filters_has_its_index(
    busy: Api, filters: dict[str, str], index: str, found: list[tuple[str, str]]
) -> None:
    answer = busy.client.get("/timeline", params=filters).json()

    assert answer["index"] == index
    assert [(item["entityId"], item["eventType"]) for item in answer["items"]] == found
    assert answer["next_cursor"] is None


def test_items_have_their_event_id_and_no_keys(busy: Api) -> None:
    item = busy.client.get("/timeline").json()["items"][0]

    assert item["event_id"]
    assert not [name for name in item if name.startswith(("GSI", "PK", "SK"))]


def test_times_are_iso_or_milliseconds(busy: Api) -> None:
    moments = [item["timestamp"] for item in busy.client.get("/timeline").json()["items"]]

    later = busy.client.get("/timeline", params={"from": str(max(moments) + 1)}).json()["items"]
    since = busy.client.get("/timeline", params={"from": "2020-01-01T00:00:00Z"}).json()["items"]
    before = busy.client.get("/timeline", params={"to": "2020-01-01"}).json()["items"]

    assert (len(later), len(since), len(before)) == (0, 3, 0)


def test_the_timeline_is_read_page_by_page_and_its_cursor_belongs_to_its_filters(busy: Api) -> None:
    first = busy.client.get("/timeline", params={"limit": 2}).json()
    second = busy.client.get("/timeline", params={"limit": 2, "cursor": first["next_cursor"]}).json()

    ids = [item["event_id"] for item in (*first["items"], *second["items"])]
    assert len(set(ids)) == len(ids) == 3
    assert second["next_cursor"] is None
    for params in ({"cursor": first["next_cursor"], "type": PENDING}, {"cursor": first["next_cursor"] + "x"}):
        refused = busy.client.get("/timeline", params=params)
        assert (refused.status_code, refused.json()["field"]) == (400, "cursor")


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"entity": "a"}, "entity"),
        ({"entity": "#"}, "entity"),
        ({"entity": "../etc#a"}, "entity"),
        ({"from": "yesterday"}, "from"),
        ({"to": "99999999999999999999"}, "to"),
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"limit": "abc"}, "limit"),
        ({"app": "x" * 2_000}, "app"),
    ],
)
def test_a_wrong_filter_is_400_and_names_the_field(api: Api, params: dict[str, Any], field: str) -> None:
    answer = api.client.get("/timeline", params=params)

    assert (answer.status_code, answer.json().get("field")) == (400, field)


def test_the_audit_lists_the_newest_change_first(api: Api) -> None:
    for n in range(3):
        api.backend.create_queue(QueueSpec(f"q{n}"))
        api.client.post(f"/queues/q{n}/purge", json={"confirm": f"q{n}", "reason": "<script>"})

    first = api.client.get("/audit", params={"limit": 4}).json()
    second = api.client.get("/audit", params={"limit": 4, "cursor": first["next_cursor"]}).json()

    records = [*first["items"], *second["items"]]
    assert list(records[0]) == ["seq", "at", "actor", "action", "target", "detail", "prev", "hash"]
    assert [record["seq"] for record in records] == list(range(len(records), 0, -1))
    assert {record["target"] for record in records} == {"q0", "q1", "q2"}
    assert second["next_cursor"] is None
    assert api.client.get("/audit", params={"cursor": "x"}).status_code == 400
    assert api.client.get("/audit", params={"limit": 0}).json()["field"] == "limit"


def test_only_an_admin_reads_the_audit(api: Api) -> None:
    with api.as_caller(api.token("operate")) as operator:
        assert operator.get("/audit").status_code == 403
    with api.as_caller(None) as stranger:
        assert (stranger.get("/audit").status_code, stranger.get("/timeline").status_code) == (401, 401)


def test_a_store_in_memory_keeps_no_audit(serve: Serve) -> None:
    assert serve("memory://").client.get("/audit").json() == {"items": [], "next_cursor": None}
