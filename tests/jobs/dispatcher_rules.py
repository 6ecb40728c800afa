"""The rules of dispatchers, for every store: woken often, late or never, they complete each job."""

from __future__ import annotations

from tests.jobs.floor import SEED, Floor

from postroad import OutgoingMessage
from postroad.jobs import JobDispatcher
from postroad.journal import JournalEvent


class DispatcherRules:
    """What holds of dispatchers wherever they run."""

    def test_a_job_goes_forward_without_any_wake_up(self, floor: Floor) -> None:
        floor.jobs.submit_job(SEED, job_id="j")
        for task_id in ("task-A", "task-B", "task-C", "task-D", "task-E"):
            floor.end("j", task_id)
            floor.sleep_through()
            floor.dispatcher.reconcile()

        assert floor.status("j")["status"] == "completed"
        assert floor.dispatcher.reconcile() == 0

    def test_an_event_counts_though_the_journal_does_not_show_it_yet(self, floor: Floor) -> None:
        floor.jobs.submit_job(SEED, job_id="j")
        floor.sent()
        seen = floor.end("j", "task-A")
        late = JournalEvent.create(
            "Task Completed",
            tenant_id=floor.tenant,
            entity_id="j.task-A",
            app=seen.app,
            properties={**seen.properties, "output": {"n": 1}},
        )

        result = floor.dispatcher.handle(late)

        assert sorted(result.dispatched) == ["task-C", "task-D"]
        assert {message["dependencyOutputs"]["task-A"]["n"] for message in floor.sent()} == {1}

    def test_events_that_somebody_without_leases_recorded_bring_a_job_forward(self, floor: Floor) -> None:
        floor.jobs.submit_job(SEED, job_id="j")
        floor.sent()
        for task_id in ("task-A", "task-C", "task-D", "task-B", "task-E"):
            event = JournalEvent.create(
                "Task Completed",
                tenant_id=floor.tenant,
                entity_id=f"j.{task_id}",
                app="shop",
                properties={
                    "requestId": f"j.{task_id}",
                    "jobId": "j",
                    "taskId": task_id,
                    "run": 1,
                    "output": task_id,
                    "durationMs": 1,
                    "exitCode": 0,
                },
            )
            assert floor.backend.journal().append([event])[0].ok
            floor.another_dispatcher().handle(event)

        assert floor.status("j")["status"] == "completed"
        assert floor.types("j") == ["Job Created", "Job Completed"]

    def test_events_that_end_no_task_of_a_job_wake_nobody(self, floor: Floor) -> None:
        event = JournalEvent.create(
            "Task Completed",
            tenant_id=floor.tenant,
            entity_id="r",
            properties={"requestId": "r", "output": 1, "durationMs": 1, "exitCode": 0},
        )

        assert floor.dispatcher.handle(event).dispatched == []

    def test_a_wake_up_that_is_none_is_dropped(self, floor: Floor) -> None:
        floor.wake_ups().send([OutgoingMessage("no"), OutgoingMessage('{"jobId": "nobody"}')])

        assert floor.dispatcher.run_once() == 2
        assert floor.dispatcher.run_once() == 0

    def test_a_dispatcher_serves_other_tenants_by_their_wake_ups(self, floor: Floor) -> None:
        stranger = JobDispatcher(floor.backend, tenant_id="somebody-else", app="shop")
        floor.jobs.submit_job(SEED, job_id="j")
        floor.sent()
        floor.end("j", "task-A")

        stranger.run_once()

        assert floor.started() == ["task-C", "task-D"]
