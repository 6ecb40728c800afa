"""Jobs beside a model: a task begins once, when all that it depends on is completed, and a job ends once."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.faults.models.machines import check_finds, check_model
from tests.jobs.floor import Floor

from postroad.errors import Conflict
from postroad.jobs.coordinator import JobCoordinator
from postroad.jobs.graph import GraphProgress
from postroad.testing.clock import FakeClock
from postroad.wiring import connect

pytestmark = pytest.mark.slow

JOB = "j"
ENDS = {"Task Completed": "completed", "Task Failed": "failed", "Task Timeout": "failed"}
DEPENDENCIES = st.lists(st.integers(0, 10), max_size=3)


@dataclass(slots=True)
class Task:
    """A task of the model: what it needs, its state, and how many runs have begun."""

    needs: list[str]
    state: str = "waiting"
    runs: int = 0


@dataclass(slots=True)
class JobModel:
    """The rules of one job in plain Python."""

    tasks: dict[str, Task] = field(default_factory=dict)
    is_cancelled: bool = False

    def add(self, dependencies: list[int]) -> dict[str, object]:
        """Add a task that needs some of those before it, and return it as it is submitted."""
        task_id = f"t{len(self.tasks)}"
        needs = sorted({f"t{number % len(self.tasks)}" for number in dependencies}) if self.tasks else []
        self.tasks[task_id] = Task(needs)
        return {"taskId": task_id, "name": "step", "dependsOn": needs}

    def ready(self) -> set[str]:
        """Return the tasks that must begin now."""
        if self.status in ("completed", "cancelled"):
            return set()
        return {
            task_id
            for task_id, task in self.tasks.items()
            if task.state == "waiting" and all(self.tasks[need].state == "completed" for need in task.needs)
        }

    def of_state(self, state: str) -> list[str]:
        return [task_id for task_id, task in self.tasks.items() if task.state == state]

    @property
    def status(self) -> str:
        if self.is_cancelled:
            return "cancelled"
        if len(self.of_state("completed")) == len(self.tasks):
            return "completed"
        return "partial_failure" if self.of_state("failed") else "processing"


class JobMachine(RuleBasedStateMachine):
    """One job, whose tasks end as the rules choose. Wake-ups may be lost until the next look at all jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.backend = connect("memory://", clock=self.clock)
        self.floor = Floor(self.backend)
        self.model = JobModel()
        self.has_lost = False

    @initialize(tasks=st.lists(DEPENDENCIES, min_size=1, max_size=5))
    def submit(self, tasks: list[list[int]]) -> None:
        self.submitted = [self.model.add(dependencies) for dependencies in tasks]
        assert self.floor.jobs.submit_job(self.submitted, job_id=JOB).created
        self._look()

    @rule()
    def submit_again(self) -> None:
        assert not self.floor.jobs.submit_job(self.submitted, job_id=JOB).created
        # A repeated submission looks at the whole job.
        self.has_lost = False
        self._look()

    @precondition(lambda self: self.model.of_state("pending"))
    @rule(place=st.integers(0, 5), end=st.sampled_from(["Task Completed"] * 3 + sorted(ENDS)), lost=st.booleans())
    def end(self, place: int, end: str, lost: bool) -> None:
        pending = self.model.of_state("pending")
        task_id = pending[place % len(pending)]
        self.floor.end(JOB, task_id, end)
        self.model.tasks[task_id].state = ENDS[end]
        if lost:
            self.floor.sleep_through()
            self.has_lost = True
        self._look()

    @rule(dependencies=DEPENDENCIES)
    def add_task(self, dependencies: list[int]) -> None:
        if self.has_lost or len(self.model.tasks) > 8:
            return
        if self.model.status in ("completed", "cancelled"):
            with pytest.raises(Conflict):
                self.floor.jobs.add_tasks(JOB, [{"taskId": "late", "name": "step"}])
            return
        self.floor.jobs.add_tasks(JOB, [self.model.add(dependencies)])
        self._look()

    @precondition(lambda self: not self.has_lost)
    @rule()
    def resume(self) -> None:
        if self.model.status != "partial_failure":
            with pytest.raises(Conflict):
                self.floor.jobs.resume(JOB)
            return
        failed = self.model.of_state("failed")
        assert self.floor.jobs.resume(JOB).resumed_tasks == failed
        for task_id in failed:
            self.model.tasks[task_id].state = "waiting"
        self._look()

    @precondition(lambda self: not self.has_lost and len(self.model.of_state("completed")) > 1)
    @rule()
    def cancel(self) -> None:
        if self.model.status == "completed":
            with pytest.raises(Conflict):
                self.floor.jobs.cancel(JOB)
            return
        open_tasks = [*self.model.of_state("waiting"), *self.model.of_state("pending")]
        assert sorted(self.floor.jobs.cancel(JOB).cancelled_tasks) == sorted(open_tasks)
        self.model.is_cancelled = True
        for task_id in open_tasks:
            self.model.tasks[task_id].state = "cancelled"
        self._look()

    @rule(another=st.booleans())
    def look_at_all_jobs(self, another: bool) -> None:
        dispatcher = self.floor.another_dispatcher() if another else self.floor.dispatcher
        dispatcher.reconcile()
        self.has_lost = False
        self._look()

    def _look(self) -> None:
        """Let the dispatcher work, and compare what has begun with what may begin."""
        self.clock.advance(1)
        self.floor.wake()
        messages = self.floor.sent()
        begun = [message["taskId"] for message in messages]
        ready = self.model.ready()
        assert len(begun) == len({*begun}), f"{begun} holds one task twice"
        assert {*begun} == ready or (self.has_lost and {*begun} < ready), f"{begun} began, {ready} were ready"
        for message in messages:
            task = self.model.tasks[message["taskId"]]
            task.state, task.runs = "pending", task.runs + 1
            assert message["run"] == task.runs
            assert {*message["dependencyOutputs"]} == {*task.needs}

    @invariant()
    def the_job_is_as_the_model_says(self) -> None:
        if self.has_lost or not self.model.tasks:
            return
        status = self.floor.status(JOB)
        assert status["status"] == self.model.status
        states = {task["taskId"]: task["status"] for task in status["tasks"]}
        assert {name: state for name, state in states.items() if state != "blocked"} == {
            name: task.state for name, task in self.model.tasks.items() if states[name] != "blocked"
        }

    @invariant()
    def a_job_ends_once(self) -> None:
        ends = [kind for kind in self.floor.types(JOB) if kind in ("Job Completed", "Job Cancelled")]
        assert len(ends) <= 1

    def teardown(self) -> None:
        self.backend.close()


def test_jobs_agree_with_their_rules() -> None:
    check_model(JobMachine, steps=12)


def test_a_task_that_begins_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the look at the results, too: a task whose results are missing does not begin.
    monkeypatch.setattr(GraphProgress, "is_ready", lambda *_: True)
    monkeypatch.setattr(JobCoordinator, "_outputs", lambda *_: {})

    check_finds(JobMachine, steps=12)
