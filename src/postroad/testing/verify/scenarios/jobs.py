"""`jobs`: each message is a graph of four tasks, whose last one takes effect when the two before it have completed."""

from __future__ import annotations

import time
from functools import partial

from postroad.jobs import JobDispatcher, Jobs
from postroad.testing.verify import workload
from postroad.testing.verify.scenario import Client, Place, Role, Scenario
from postroad.testing.verify.scenarios import tasks
from postroad.testing.verify.scenarios.tasks import FACTS, TASK, TOPIC
from postroad.testing.verify.workload import Message
from postroad.wiring import Backend

_GRAPH = {"first": [], "left": ["first"], "right": ["first"], "last": ["left", "right"]}
_RECONCILE_SECONDS = 2.0
_FAILED = "Job Failure Detected"


def _submit(client: Client, backend: Backend) -> None:
    jobs = Jobs(backend)

    def submit(message: Message) -> None:
        graph = []
        for name, needs in _GRAPH.items():
            given = tasks.input_of(client, message, last=name == "last")
            graph.append({"taskId": name, "name": TASK, "dependsOn": needs, "input": given})
        jobs.submit_job(graph, job_id=message.body.id)

    workload.publish_all(client, TOPIC, submit)


def _dispatch(client: Client, backend: Backend) -> None:
    dispatcher = JobDispatcher(backend)
    client.at_work()
    looked = 0.0
    while not client.stopping:
        dispatcher.run_once(wait=0.2)
        if time.monotonic() - looked > _RECONCILE_SECONDS:
            dispatcher.reconcile()
            looked = time.monotonic()


def _unsettled(place: Place, backend: Backend) -> int:
    """Return how many tasks and jobs have not ended, those that wait for others included, so that it only falls."""
    open_jobs = tasks.ended(backend, "Job Created") - tasks.ended(backend, "Job Completed", _FAILED)
    completed = tasks.ended(backend, "Task Completed")
    left = [name for job in open_jobs for name in _GRAPH if f"{job}.{name}" not in completed]
    return len(left) + len(open_jobs) or tasks.unsettled(place, backend)


SCENARIO = Scenario(
    facts=FACTS,
    roles={
        "producer": Role(work=_submit, sends=True),
        "dispatcher": Role(work=_dispatch, processes=2),
        "worker": Role(work=tasks.work, processes=2, holds=True),
        "watcher": Role(work=tasks.watch),
    },
    prepare=tasks.prepare,
    unsettled=_unsettled,
    read_back=partial(tasks.read_back, failure=_FAILED),
    weight=2,
)
