"""Retries of many tasks: audited, limited, paced, and never for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import postroad
from postroad.errors import ConfigurationError, InvalidInput
from postroad.jobs import Jobs
from postroad.operations import AuditLog, TaskRetries
from postroad.settings import audit_path
from postroad.tasks import TaskFilter, TaskProducer

TENANT, APP = "acme", "shop"


class Shop:
    """Tasks of two queues, and the audit file."""

    def __init__(self, url: str, backend: postroad.Backend) -> None:
        self.backend = backend
        self.retries = TaskRetries(backend, tenant=TENANT, app=APP)
        self.audit = AuditLog(audit_path(url))
        self._producers = {
            queue: TaskProducer(backend, queue=queue, tenant_id=TENANT, app=APP) for queue in ("tasks", "slow")
        }

    def cancelled(self, *ids: str, queue: str = "tasks", name: str = "resize") -> None:
        """Submit tasks and cancel them, which needs no worker."""
        for request_id in ids:
            self._producers[queue].submit(name, request_id=request_id)
            self._producers[queue].cancel(request_id)

    def run(self, request_id: str) -> int:
        state = self._producers["tasks"].status(request_id)
        assert state is not None
        return state.run


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.delenv("POSTROAD_AUDIT_LOG", raising=False)
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    with postroad.connect(url) as backend:
        yield Shop(url, backend)


CANCELLED = TaskFilter(state="cancelled")


def test_all_tasks_that_match_run_again_with_an_audit_record(shop: Shop) -> None:
    shop.cancelled("a", "b")
    shop.cancelled("c", name="crop")

    report = shop.retries.retry_all(TaskFilter(state="cancelled", name="resize"), reason="mended", actor="ann")

    assert (report.status, report.matched, report.retried, report.skipped) == ("done", 2, 2, {})
    assert [shop.run(name) for name in "abc"] == [2, 2, 1]
    start, end = shop.audit.read()
    assert (start.action, start.target, start.actor) == ("task.retry.start", "resize", "ann")
    assert (start.detail["reason"], start.detail["run_id"]) == ("mended", report.run_id)
    assert (end.action, end.detail["retried"], end.detail["status"]) == ("task.retry.end", 2, "done")


def test_each_task_goes_back_to_the_queue_it_came_from(shop: Shop) -> None:
    shop.cancelled("a")
    shop.cancelled("b", queue="slow")
    before = {name: shop.backend.queue(name).stats().visible for name in ("tasks", "slow")}

    shop.retries.retry_all(CANCELLED)

    after = {name: shop.backend.queue(name).stats().visible for name in ("tasks", "slow")}
    assert {name: after[name] - before[name] for name in after} == {"tasks": 1, "slow": 1}


def test_a_limit_leaves_the_rest_which_a_second_run_retries(shop: Shop) -> None:
    shop.cancelled("a", "b", "c")

    first, second = (shop.retries.retry_all(CANCELLED, limit=2) for _ in range(2))

    assert (first.status, first.retried) == ("limit", 2)
    assert (second.status, second.retried) == ("done", 1)
    assert [shop.run(name) for name in "abc"] == [2, 2, 2]


def test_a_rate_is_kept(shop: Shop) -> None:
    shop.cancelled("a", "b", "c")
    began = time.monotonic()

    shop.retries.retry_all(CANCELLED, rate=10)

    assert time.monotonic() - began >= 0.2


def test_a_task_that_ends_badly_again_is_not_retried_twice(shop: Shop) -> None:
    shop.cancelled("a", "b")

    def end_again(report: object) -> None:
        for name in "ab":
            shop.retries._producer("tasks").cancel(name)

    report = shop.retries.retry_all(CANCELLED, rate=1, progress=end_again)

    assert report.retried == 2
    assert [shop.run(name) for name in "ab"] == [2, 2]


def test_a_run_that_is_stopped_says_so_and_can_be_continued(shop: Shop) -> None:
    shop.cancelled("a", "b", "c")
    stop = threading.Event()

    stopped = shop.retries.retry_all(CANCELLED, rate=1, progress=lambda report: stop.set(), stop=stop)
    rest = shop.retries.retry_all(CANCELLED)

    assert (stopped.status, rest.status) == ("stopped", "done")
    assert stopped.retried + rest.retried == 3


def test_a_dry_run_counts_and_changes_nothing(shop: Shop) -> None:
    shop.cancelled("a", "b")

    report = shop.retries.retry_all(CANCELLED, dry_run=True)

    assert (report.status, report.matched, report.retried) == ("dry_run", 2, 0)
    assert [shop.run(name) for name in "ab"] == [1, 1]
    assert not shop.audit.path.exists()


def test_without_an_audit_record_nothing_is_retried(shop: Shop) -> None:
    shop.cancelled("a")
    shop.audit.path.mkdir()

    with pytest.raises(ConfigurationError, match="audit file"):
        shop.retries.retry_all(CANCELLED)

    assert shop.run("a") == 1


@pytest.mark.parametrize("state", ["pending", "processing", "completed", None])
def test_only_failed_and_cancelled_tasks_can_be_retried(shop: Shop, state: str | None) -> None:
    with pytest.raises(InvalidInput, match="cannot be retried"):
        shop.retries.retry_all(TaskFilter(state=state))


@pytest.mark.parametrize(("limit", "rate", "field"), [(0, None, "limit"), (None, 0.0, "rate"), (None, -1.0, "rate")])
def test_a_wrong_limit_or_rate_is_refused(shop: Shop, limit: int | None, rate: float | None, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        shop.retries.retry_all(CANCELLED, limit=limit, rate=rate)

    assert caught.value.field == field


def test_a_task_that_cannot_be_retried_is_left_and_counted(shop: Shop) -> None:
    jobs = Jobs(shop.backend, tenant_id=TENANT, app=APP)
    jobs.submit_job(
        [{"taskId": "x", "name": "resize"}, {"taskId": "y", "name": "resize", "dependsOn": ["x"]}], job_id="j"
    )
    # It never began, so there is no input to begin it with.
    shop.retries._producer("tasks").cancel("j.y")
    shop.cancelled("a")

    report = shop.retries.retry_all(CANCELLED)

    assert (report.matched, report.retried, report.skipped) == (2, 1, {"refused": 1})
