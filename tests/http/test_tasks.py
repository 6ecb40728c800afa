"""Tasks over HTTP: listing them, waiting for one, and retrying or cancelling one or many."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from tests.http.api import Api, Serve
from tests.waiting import eventually

from postroad.errors import Unavailable
from postroad.journal import TaskProgress
from postroad.operations import AuditLog
from postroad.settings import audit_path
from postroad.tasks import TaskRecords

STOPPED = {"state": "cancelled"}


def cancelled(api: Api, *ids: str, name: str = "resize") -> None:
    """Submit tasks and cancel them, which needs no worker."""
    for request_id in ids:
        assert api.client.post("/tasks", json={"name": name, "requestId": request_id}).status_code == 202
        assert api.client.post(f"/tasks/{request_id}/cancel").status_code == 200


def ended(api: Api, operation_id: str) -> dict[str, Any]:
    """The operation, once it has ended."""
    eventually(lambda: api.client.get(f"/operations/{operation_id}").json()["state"] != "running")
    return dict(api.client.get(f"/operations/{operation_id}").json())


def test_tasks_are_listed_as_each_is_shown(api: Api) -> None:
    cancelled(api, "a", "b")
    cancelled(api, "c", name="crop")
    api.client.post("/tasks", json={"name": "resize", "requestId": "d"})

    everything = api.client.get("/tasks").json()
    named = api.client.get("/tasks", params={"state": "cancelled", "name": "resize", "since": "1h"}).json()

    assert [item["requestId"] for item in everything["items"]] == ["d", "c", "b", "a"]
    assert everything["next_cursor"] is None
    assert named["items"] == [api.client.get(f"/tasks/{name}").json() for name in ("b", "a")]


def test_a_list_is_read_page_by_page_and_its_cursor_belongs_to_it(api: Api) -> None:
    cancelled(api, "a", "b", "c")

    first = api.client.get("/tasks", params={"limit": 2, **STOPPED}).json()
    cursor = first["next_cursor"]
    second = api.client.get("/tasks", params={"limit": 2, "cursor": cursor, **STOPPED}).json()

    assert [item["requestId"] for item in (*first["items"], *second["items"])] == ["c", "b", "a"]
    assert second["next_cursor"] is None
    assert api.client.get("/tasks", params={"cursor": cursor}).status_code == 400
    assert api.client.get("/tasks", params={"cursor": cursor + "x", **STOPPED}).status_code == 400


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"state": "faild"}, "state"),
        ({"name": "a b"}, "name"),
        ({"since": "yesterday"}, "since"),
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
    ],
)
def test_a_wrong_filter_is_400_and_names_the_field(api: Api, params: dict[str, Any], field: str) -> None:
    answer = api.client.get("/tasks", params=params)

    assert (answer.status_code, answer.json()["field"]) == (400, field)


def test_a_task_is_cancelled_and_retried(api: Api) -> None:
    api.client.post("/tasks", json={"name": "x", "requestId": "r"})

    cancel, again = (api.client.post("/tasks/r/cancel") for _ in range(2))
    retry, once_more = (api.client.post("/tasks/r/retry") for _ in range(2))

    assert (cancel.status_code, cancel.json()) == (200, {"requestId": "r", "run": 1, "state": "cancelled"})
    assert (again.status_code, again.json()["type"]) == (409, "/errors/conflict")
    assert (retry.status_code, retry.json()) == (200, {"requestId": "r", "run": 2, "state": "pending"})
    assert once_more.status_code == 409
    assert [api.client.post(f"/tasks/nobody/{verb}").status_code for verb in ("retry", "cancel")] == [404, 404]
    actions = [record.action for record in AuditLog(audit_path(api.context.settings.url)).read()]
    assert actions[:2] == ["task.cancel.start", "task.cancel.end"]
    assert {"task.retry.start", "task.retry.end"} <= set(actions)


def test_many_tasks_are_retried_by_an_operation(api: Api) -> None:
    cancelled(api, "a", "b")
    cancelled(api, "c", name="crop")

    body = {"state": "cancelled", "name": "resize", "since": "1h", "rate": 100, "reason": "mended"}
    started = api.client.post("/tasks/retry", json=body)
    operation = ended(api, started.json()["operation_id"])

    assert (started.status_code, set(started.json())) == (202, {"operation_id"})
    assert set(operation) == {"state", "moved", "matched", "error", "report"}
    assert (operation["state"], operation["moved"], operation["matched"], operation["error"]) == ("done", 2, 2, None)
    assert operation["report"]["status"] == "done"
    assert [api.client.get(f"/tasks/{name}").json()["run"] for name in "abc"] == [2, 2, 1]
    records = list(AuditLog(audit_path(api.context.settings.url)).read())
    assert (records[-1].action, records[-1].actor, records[-2].detail["reason"]) == (
        "task.retry.end",
        "admin",
        "mended",
    )


def test_a_limit_is_kept(api: Api) -> None:
    cancelled(api, "a", "b", "c")

    operation = ended(api, api.client.post("/tasks/retry", json={**STOPPED, "limit": 2}).json()["operation_id"])

    assert (operation["state"], operation["moved"], operation["report"]["status"]) == ("done", 2, "limit")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"state": "completed"}, "state"),
        ({"name": "a b"}, "name"),
        ({"since": "soon"}, "since"),
        ({"limit": 0}, "limit"),
        ({"rate": 0}, "rate"),
        ({"evil": 1}, "evil"),
    ],
)
def test_a_retry_that_cannot_be_is_400(api: Api, body: dict[str, Any], field: str) -> None:
    answer = api.client.post("/tasks/retry", json=body)

    assert (answer.status_code, answer.json()["field"]) == (400, field)


def test_retries_need_the_scope_operate(api: Api) -> None:
    with api.as_caller(api.token("publish")) as caller:
        answers = [caller.post(path, json={}) for path in ("/tasks/retry", "/tasks/r/retry", "/tasks/r/cancel")]
        listed = caller.get("/tasks")

    assert [answer.status_code for answer in answers] == [403, 403, 403]
    assert listed.status_code == 200


def test_the_same_key_starts_one_operation(api: Api) -> None:
    cancelled(api, "a")
    headers = {"Idempotency-Key": "k"}

    first, second = (api.client.post("/tasks/retry", json=STOPPED, headers=headers) for _ in range(2))

    assert first.json() == second.json()
    assert ended(api, first.json()["operation_id"])["moved"] == 1


def test_an_operation_that_is_not_there_is_404(api: Api) -> None:
    assert [api.client.get(f"/operations/{name}").status_code for name in ("nobody", "a.b", "x" * 500)] == [404] * 3


def test_an_operation_of_a_server_that_ended_is_continued_by_the_next(serve: Serve) -> None:
    first = serve()
    cancelled(first, *(f"r{number}" for number in range(8)))
    operation_id = first.client.post("/tasks/retry", json={**STOPPED, "rate": 2}).json()["operation_id"]
    eventually(lambda: first.client.get(f"/operations/{operation_id}").json()["moved"] >= 1)
    first.stop()
    left = first.client.get(f"/operations/{operation_id}").json()

    second = serve()
    second.context.operations.resume()
    operation = ended(second, operation_id)

    assert left["state"] == "running"
    assert (operation["state"], operation["moved"]) == ("done", 8)
    assert {second.client.get(f"/tasks/r{number}").json()["run"] for number in range(8)} == {2}


def test_an_operation_that_was_recorded_and_never_began_begins_at_the_next_start(serve: Serve) -> None:
    api = serve()
    cancelled(api, "a")
    now = int(time.time() * 1_000)
    params = {"state": "cancelled", "name": None, "since": None, "until": now}
    params |= {"limit": None, "rate": None, "reason": ""}
    operation_id = api.context.operations.record("task.retry", params, actor="ann")

    api.context.operations.resume()

    assert ended(api, operation_id)["moved"] == 1


def test_a_poll_answers_when_the_task_has_ended(api: Api) -> None:
    api.client.post("/tasks", json={"name": "x", "requestId": "r"})
    timer = threading.Timer(0.3, lambda: api.context.work.tasks.cancel("r"))
    timer.start()

    began = time.monotonic()
    answer = api.client.get("/tasks/r", params={"wait": 20})
    timer.join()

    assert answer.json()["state"] == "cancelled"
    assert time.monotonic() - began < 15


def test_a_poll_that_waits_in_vain_answers_the_state(api: Api) -> None:
    api.client.post("/tasks", json={"name": "x", "requestId": "r"})

    assert api.client.get("/tasks/r", params={"wait": 0.2}).json()["state"] == "pending"
    assert api.client.get("/tasks/r", params={"wait": 21}).status_code == 400
    assert api.client.get("/tasks/nobody", params={"wait": 5}).status_code == 404


def test_a_server_that_stops_answers_a_poll_with_the_state(api: Api) -> None:
    api.client.post("/tasks", json={"name": "x", "requestId": "r"})
    with ThreadPoolExecutor(1) as threads:
        poll = threads.submit(api.client.get, "/tasks/r", params={"wait": 20})
        eventually(lambda: api.context.polls.open)

        api.stop()
        answer = poll.result(120)

    assert (answer.status_code, answer.json()["state"]) == (200, "pending")


def test_polls_for_tasks_count_among_all_polls(serve: Serve) -> None:
    api = serve(options={"max_polls": 0})
    api.client.post("/tasks", json={"name": "x", "requestId": "r"})

    assert api.client.get("/tasks/r", params={"wait": 1}).status_code == 429
    assert api.client.get("/tasks/r").status_code == 200


def test_a_failed_task_is_shown_with_its_traceback_its_output_and_its_progress(api: Api) -> None:
    api.client.post("/tasks", json={"name": "x", "requestId": "r"})
    records = TaskRecords(api.backend)
    held = records.read("default", "r")
    assert held is not None
    before = api.client.get("/tasks/r").json()
    factory = api.context.work.tasks._factory
    event = factory.event(
        "Task Failed",
        held.lease.task("default", "r"),
        error="ValueError: no",
        errorCategory="validation",
        retryCount=1,
        source="worker",
        traceback=["Traceback", "ValueError: no"],
        lastLines=["page 4"],
    )
    lease = held.lease.settled(event)
    progress = TaskProgress(fraction=0.4, message="page 4 of 10", at=1_800_000_000_000)
    records.write("default", "r", msgspec.structs.replace(lease, progress=progress), [event], expect=held)

    shown = api.client.get("/tasks/r").json()

    assert not {"traceback", "lastLines", "progress"} & set(before)
    assert (shown["traceback"], shown["lastLines"]) == (["Traceback", "ValueError: no"], ["page 4"])
    assert shown["progress"] == {"fraction": 0.4, "message": "page 4 of 10", "at": 1_800_000_000_000}


def test_a_write_whose_answer_was_lost_does_not_stop_an_operation(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = serve()
    cancelled(api, "a", "b", "c", "d")
    put = api.context.operations._put
    writes = iter(range(100))

    def forgetful(operation_id: str, record: Any, expect: Any) -> int | None:
        version = put(operation_id, record, expect)
        if next(writes) == 2:
            raise Unavailable("the answer was lost")
        return version

    monkeypatch.setattr(api.context.operations, "_put", forgetful)
    operation = ended(api, api.client.post("/tasks/retry", json={**STOPPED, "rate": 2}).json()["operation_id"])

    assert (operation["state"], operation["moved"]) == ("done", 4)
