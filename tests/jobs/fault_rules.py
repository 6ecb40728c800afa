"""The rules of dispatchers that die, for every store: the next look completes their work, once."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from tests.jobs.floor import APP, SEED, Floor
from tests.jobs.processes import dispatcher

from postroad.journal.port import every_event
from postroad.tasks import Reconciler


def killed(floor: Floor, url: str, failpoint: str) -> None:
    """Let a dispatcher run until it dies at this place."""
    with dispatcher(url, floor.tenant, failpoints=f"{failpoint}=kill9") as dying:
        assert dying.wait(120) == -signal.SIGKILL


def pendings(floor: Floor) -> Counter[tuple[str, int]]:
    """How often each run was begun."""
    found = every_event(floor.backend.journal(), "GSI4", tenant=floor.tenant, event_type="Task Pending")
    return Counter((event.entity_id, event.properties["run"]) for event in found)


@pytest.mark.slow
class DispatcherFaultRules:
    """What holds wherever dispatchers are killed."""

    def test_a_task_whose_dispatcher_died_before_recording_it_is_sent_once(self, floor: Floor, url: str) -> None:
        floor.jobs.submit_job(SEED, job_id="j")
        floor.sent()
        floor.end("j", "task-A")

        killed(floor, url, "dispatcher.after_lease")
        floor.dispatcher.reconcile()
        Reconciler(floor.backend, tenant_id=floor.tenant, app=APP, stale_after=0).run_once()

        assert floor.started() == ["task-C", "task-D"]
        assert set(pendings(floor).values()) == {1}

    def test_a_task_whose_dispatcher_died_before_sending_it_is_sent_once(self, floor: Floor, url: str) -> None:
        floor.jobs.submit_job(SEED, job_id="j")
        floor.sent()
        floor.end("j", "task-A")

        killed(floor, url, "dispatcher.before_enqueue")
        Reconciler(floor.backend, tenant_id=floor.tenant, app=APP, stale_after=0).run_once()
        floor.dispatcher.reconcile()
        Reconciler(floor.backend, tenant_id=floor.tenant, app=APP, stale_after=0).run_once()

        assert floor.started() == ["task-C", "task-D"]
        assert set(pendings(floor).values()) == {1}

    def test_a_job_whose_dispatcher_died_before_its_last_event_is_completed_once(self, floor: Floor, url: str) -> None:
        floor.jobs.submit_job(SEED[:2], job_id="j")
        floor.end("j", "task-A")
        floor.end("j", "task-B")

        killed(floor, url, "dispatcher.before_job_event")
        floor.dispatcher.reconcile()
        floor.dispatcher.reconcile()

        assert floor.types("j") == ["Job Created", "Job Completed"]
        assert floor.status("j")["status"] == "completed"
