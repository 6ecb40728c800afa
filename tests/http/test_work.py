"""Tasks and jobs over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from tests.http.api import Api

TASKS: list[dict[str, Any]] = [
    {"taskId": "task-A", "name": "scrape-store", "dependsOn": [], "input": {"storeId": "store-123"}},
    {"taskId": "task-C", "name": "color-tags", "dependsOn": ["task-A"], "input": {"style": "modern"}},
]


def test_a_task_is_submitted_once_and_shown(api: Api) -> None:
    body = {"name": "scrape-store", "input": {"storeId": 7}, "requestId": "r1", "timeoutMs": 5_000}

    first = api.client.post("/tasks", json=body)
    again = api.client.post("/tasks", json=body)
    other = api.client.post("/tasks", json={**body, "input": {"storeId": 8}})

    assert (first.status_code, first.json()) == (
        202,
        {"requestId": "r1", "state": "pending", "run": 1, "created": True},
    )
    assert (again.status_code, again.json()["created"]) == (200, False)
    assert (other.status_code, other.json()["type"]) == (409, "/errors/conflict")
    shown = api.client.get("/tasks/r1").json()
    assert (shown["requestId"], shown["state"], shown["run"], shown["lastEventType"]) == (
        "r1",
        "pending",
        1,
        "Task Pending",
    )
    assert set(shown) == {
        "requestId",
        "state",
        "run",
        "attempt",
        "lastEventType",
        "lastEventAt",
        "jobId",
        "taskId",
        "output",
        "error",
        "errorCategory",
    }
    assert api.client.get("/tasks/r1", params={"at": 1_000_000_000_000}).status_code == 404


def test_the_history_of_a_task_is_read_page_by_page(api: Api) -> None:
    api.client.post("/tasks", json={"name": "x", "requestId": "r1"})
    api.context.work.tasks.cancel("r1")

    first = api.client.get("/tasks/r1/history", params={"limit": 1}).json()
    second = api.client.get("/tasks/r1/history", params={"limit": 1, "cursor": first["next_cursor"]}).json()
    newest = api.client.get("/tasks/r1/history", params={"limit": 1, "order": "desc"}).json()

    assert [item["eventType"] for item in (*first["items"], *second["items"])] == ["Task Pending", "Task Cancelled"]
    assert newest["items"][0]["eventType"] == "Task Cancelled"
    assert api.client.get("/tasks/r1/history", params={"cursor": first["next_cursor"] + "x"}).status_code == 400
    assert api.client.get("/tasks/r1/history", params={"limit": 101}).status_code == 400
    assert api.client.get("/tasks/r1/history", params={"order": "up"}).status_code == 400


def test_looking_makes_no_queue(api: Api) -> None:
    for path in ("/tasks/r1", "/tasks/r1/history", "/jobs", "/jobs/j1", "/why/r1"):
        api.client.get(path)

    assert api.client.get("/queues").json()["items"] == []


@pytest.mark.parametrize(
    "path", ["/tasks/nobody", "/tasks/a%23b", "/tasks/nobody/history", "/jobs/nobody", "/jobs/a.b"]
)
def test_what_is_not_there_is_404(api: Api, path: str) -> None:
    assert api.client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "os:system"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({}, "name"),
        ({"name": "x", "input": [1]}, "input"),
        ({"name": "x", "requestId": "a.b"}, "requestId"),
        ({"name": "x", "requestId": "r" * 257}, "requestId"),
        ({"name": "x", "timeoutMs": 0}, "timeoutMs"),
        ({"name": "x", "timeoutMs": 43_200_001}, "timeoutMs"),
        ({"name": "x", "evil": 1}, "evil"),
    ],
)
def test_a_task_that_cannot_be_is_400_and_nothing_is_submitted(api: Api, body: dict[str, Any], field: str) -> None:
    answer = api.client.post("/tasks", json=body)

    assert answer.status_code == 400
    assert answer.json()["field"] == field


def test_a_job_is_submitted_extended_cancelled_and_listed(api: Api) -> None:
    body = {"tasks": TASKS, "jobId": "job-456", "requestId": "req-789"}

    made = api.client.post("/jobs", json=body)
    again = api.client.post("/jobs", json=body)
    other = api.client.post("/jobs", json={**body, "tasks": TASKS[:1]})

    assert made.status_code == 201
    assert {name: made.json()[name] for name in ("jobId", "status", "totalTasks", "rootTasks")} == {
        "jobId": "job-456",
        "status": "created",
        "totalTasks": 2,
        "rootTasks": ["task-A"],
    }
    assert (again.status_code, again.json()) == (200, made.json())
    assert other.status_code == 409
    shown = api.client.get("/jobs/job-456").json()
    assert shown["status"] == "processing"
    assert shown["progress"] == {
        "waiting": 1,
        "pending": 1,
        "processing": 0,
        "completed": 0,
        "failed": 0,
        "cancelled": 0,
    }
    assert shown["tasks"][1] == {
        "taskId": "task-C",
        "requestId": "job-456.task-C",
        "name": "color-tags",
        "dependsOn": ["task-A"],
        "status": "waiting",
        "lastEventType": None,
        "lastEventAt": None,
    }
    added = api.client.post("/jobs/job-456/tasks", json={"tasks": [{"taskId": "task-F", "name": "x"}]})
    assert (added.status_code, added.json()) == (
        200,
        {"jobId": "job-456", "addedTasks": ["task-F"], "immediatelyReady": ["task-F"], "totalTasksNow": 3},
    )
    assert api.client.post("/jobs/job-456/resume").status_code == 409
    cancelled = api.client.post("/jobs/job-456/cancel")
    assert cancelled.json() == {
        "jobId": "job-456",
        "cancelledTasks": ["task-A", "task-C", "task-F"],
        "status": "cancelled",
    }
    assert api.client.post("/jobs/job-456/tasks", json={"tasks": [{"taskId": "z", "name": "x"}]}).status_code == 409
    (row,) = api.client.get("/jobs", params={"status": "cancelled"}).json()["items"]
    assert row == {key: shown[key] for key in ("jobId", "createdAt")} | {"status": "cancelled", "totalTasks": 3}
    assert api.client.get("/jobs", params={"status": "done"}).status_code == 400


def test_a_failed_task_is_resumed_over_http(api: Api) -> None:
    api.client.post("/jobs", json={"tasks": TASKS, "jobId": "j"})
    api.context.work.tasks.cancel("j.task-A")

    resumed = api.client.post("/jobs/j/resume", json={})

    assert (resumed.status_code, resumed.json()) == (
        200,
        {"jobId": "j", "resumedTasks": ["task-A"], "status": "processing"},
    )
    assert api.client.get("/tasks/j.task-A").json()["run"] == 2


def test_jobs_are_listed_newest_first_page_by_page(api: Api) -> None:
    for number in range(3):
        api.client.post("/jobs", json={"tasks": TASKS, "jobId": f"j{number}"})

    first = api.client.get("/jobs", params={"limit": 2}).json()
    second = api.client.get("/jobs", params={"limit": 2, "cursor": first["next_cursor"]}).json()

    assert [job["jobId"] for job in (*first["items"], *second["items"])] == ["j2", "j1", "j0"]
    assert second["next_cursor"] is None


def test_a_page_of_the_jobs_of_a_status_looks_at_few_jobs(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.jobs.jobs._MOST_EXAMINED", 3)
    for number in range(5):
        api.client.post("/jobs", json={"tasks": TASKS, "jobId": f"j{number}"})
    api.client.post("/jobs/j1/cancel")

    first = api.client.get("/jobs", params={"status": "cancelled"}).json()
    page = api.client.get("/ui/jobs", params={"status": "cancelled"}).text
    second = api.client.get("/jobs", params={"status": "cancelled", "cursor": first["next_cursor"]}).json()

    assert first["items"] == []
    assert "None of the jobs looked at has this status." in page
    assert "/ui/jobs?status=cancelled&amp;cursor=" in page
    assert ([row["jobId"] for row in second["items"]], second["next_cursor"]) == (["j1"], None)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"tasks": []}, "at least one task"),
        ({}, "tasks"),
        ({"tasks": [{"taskId": f"t{n}", "name": "x"} for n in range(51)]}, "Too many tasks: 51 (max 50)"),
        ({"tasks": "a"}, "tasks"),
        ({"tasks": [{"taskId": "a", "name": "x", "dependsOn": "a"}]}, "not a list of task ids"),
        ({"tasks": [{"taskId": "a", "name": "x", "dependsOn": ["a"]}]}, "Cycle detected involving: a"),
        ({"tasks": [{"taskId": "a", "name": "x", "dependsOn": ["b"]}]}, 'Task a depends on "b" which does not exist'),
        ({"tasks": [{"taskId": "a", "name": "x"}] * 2}, "Duplicate taskId: a"),
        ({"tasks": [{"taskId": "a", "name": "x"}], "jobId": "a.b"}, "jobId"),
    ],
)
def test_a_job_that_cannot_be_is_400_with_the_reason(api: Api, body: dict[str, Any], text: str) -> None:
    answer = api.client.post("/jobs", json=body)

    assert answer.status_code == 400
    assert text in answer.json()["detail"]
    assert api.client.get("/jobs").json()["items"] == []


@pytest.mark.parametrize("verb", ["tasks", "resume", "cancel"])
def test_verbs_on_a_job_that_is_not_there_are_404(api: Api, verb: str) -> None:
    assert api.client.post(f"/jobs/nobody/{verb}", json={"tasks": TASKS} if verb == "tasks" else {}).status_code == 404


def test_the_story_of_a_task_and_of_a_job_is_told(api: Api) -> None:
    api.client.post("/jobs", json={"tasks": TASKS, "jobId": "j"})

    job, task = api.client.get("/why/j"), api.client.get("/why/j.task-A")
    missing = api.client.get("/why/nobody")

    assert (job.status_code, job.json()["kind"], job.json()["verdict"]) == (200, "job", "waiting")
    assert (task.status_code, task.json()["kind"], task.json()["verdict"]) == (200, "task", "waiting")
    assert set(task.json()) == {"id", "kind", "verdict", "summary", "steps", "related", "next"}
    assert (missing.status_code, missing.json()["type"]) == (404, "/errors/not-found")


def test_a_repeated_submission_under_one_key_answers_the_same(api: Api) -> None:
    headers = {"Idempotency-Key": "k1"}

    first = api.client.post("/tasks", json={"name": "x"}, headers=headers)
    second = api.client.post("/tasks", json={"name": "x"}, headers=headers)

    assert first.json() == second.json()
    assert second.headers["idempotency-replayed"] == "true"
