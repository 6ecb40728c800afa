"""A real `postroad up` with tasks that fail, jobs of several sizes, agents and a chat user."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.server import Served, served
from tests.notifications.people import missed
from tests.waiting import eventually

from postroad.notifications import NotificationStore, OfflineProcessor

HOSTILE = "<script>alert('x')</script> \u202egnp.exe"
"""What must be shown as text, with its mark of direction escaped."""
SHOWN = "<script>alert('x')</script> \\u202egnp.exe"
MANY = "seventy-stores-with-a-long-name-that-has-to-wrap-somewhere-on-the-screen-of-a-phone"
WORK_PAGES = {
    "/ui/tasks": "tasks",
    "/ui/jobs": "jobs",
    "/ui/jobs/five": "job",
    f"/ui/jobs/{MANY}": "job",
    "/ui/events": "events",
    "/ui/events/five.price-check": "event",
    "/ui/agents": "agents",
    "/ui/agents?agent=auditor": "agents",
    "/ui/schedules": "schedules",
    "/ui/workers": "workers",
    "/ui/notifications": "notifications",
    "/ui/notifications?user=ann": "notifications",
    "/ui/map": "map",
}
TASKS = f"""
from postroad.tasks import task


def fetch(store):
    raise ConnectionError(f"store {{store}} answered 503: " + {HOSTILE!r})


@task("scrape-store", max_attempts=1)
def scrape_store(store: str = "s1", fail: bool = False) -> str:
    print("opening", store)
    if fail:
        fetch(store)
    return store


@task("nightly-report", schedule="0 3 * * *", tz="Europe/Athens")
def nightly_report() -> int:
    return 1
"""


@contextmanager
def working(folder: Path) -> Iterator[Served]:
    """Start one that has done all of its work, some of it in vain."""
    (folder / "shop_tasks.py").write_text(textwrap.dedent(TASKS))
    chat = f"sqlite:///{folder}/chat.db"
    with NotificationStore(chat) as store:
        store.register_device("ann", "phone-token", "fcm")
        OfflineProcessor(store).handle(missed("m1"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOTIFICATIONS_DATABASE_URL", chat)
        with served(folder, "--load", "shop_tasks") as server:
            furnish(server)
            yield server


def furnish(server: Served) -> None:
    """Submit jobs and tasks, and wait until they have ended or wait for what has failed."""
    job(
        server,
        "five",
        [
            _task("scrape-store"),
            _task("color-tags", "scrape-store"),
            _task("price-check", "scrape-store", fail=True),
            _task("compile-result", "color-tags", "price-check"),
            _task("send-mail", "compile-result"),
        ],
    )
    job(server, "sixty", [_task("t0", fail=True), *(_task(f"t{n}", f"t{n // 3}") for n in range(1, 60))])
    chain = [_task(f"t{n}", *([f"t{n - 1}"] if n else []), fail=n == 4) for n in range(5)]
    job(server, MANY, [*chain, *(_task(f"t{n}", "t4") for n in range(5, 70))])
    for agent in ("collector", "auditor"):
        post(server, "/agents", agentId=agent, accept="all")
    assert server.client.put("/agents/auditor/subscriptions/collector", json={}).status_code == 204
    for name in ("five", "sixty", MANY):
        wait_for_job(server, name, "partial_failure")
    wait_for_task(server, "five.color-tags", "completed")


def _task(task_id: str, *needs: str, fail: bool = False) -> dict[str, Any]:
    given = {"store": task_id, "fail": fail}
    return {"taskId": task_id, "name": "scrape-store", "dependsOn": list(needs), "input": given}


def job(server: Served, job_id: str, tasks: list[dict[str, Any]]) -> None:
    """Submit a job of any size."""
    post(server, "/jobs", jobId=job_id, tasks=tasks[:50])
    if tasks[50:]:
        post(server, f"/jobs/{job_id}/tasks", tasks=tasks[50:])


def post(server: Served, path: str, **body: Any) -> dict[str, Any]:
    answer = server.client.post(path, json=body)
    assert answer.is_success, answer.text
    return dict(answer.json()) if answer.content else {}


def wait_for_job(server: Served, job_id: str, status: str) -> None:
    eventually(lambda: server.client.get(f"/jobs/{job_id}").json()["status"] == status, every=0.1)


def wait_for_task(server: Served, request_id: str, state: str, run: int = 1) -> None:
    def is_so() -> bool:
        shown = server.client.get(f"/tasks/{request_id}").json()
        return (shown.get("state"), shown.get("run")) == (state, run)

    eventually(is_so, every=0.1)


def submit(server: Served, request_id: str, *, fail: bool = False, name: str = "scrape-store") -> str:
    """Submit a task and return its id."""
    given = {} if name != "scrape-store" else {"store": "s7", "fail": fail}
    post(server, "/tasks", name=name, input=given, requestId=request_id)
    return request_id
