"""`jobs`: each message is a graph of four tasks, whose last one takes effect when the two before it have completed."""

from __future__ import annotations

import time
from functools import partial

from postroad.jobs import JobDispatcher, Jobs
from postroad.testing.verify import chores, workload
from postroad.testing.verify.chores import FACTS, TASK, TOPIC
from postroad.testing.verify.scenario import Client, Place, Role, Scenario
from postroad.testing.verify.workload import Message

_GRAPH = {"first": [], "left": ["first"], "right": ["first"], "last": ["left", "right"]}
_RECONCILE_SECONDS = 2.0
_FAILED = "Job Failure Detected"


def _submit(client: Client) -> None:
    with client.place.backend() as backend:
        jobs = Jobs(backend)
        client.at_work()
        for message in workload.messages(client):
            workload.publish(client, TOPIC, message, partial(_submitted, client, jobs, message))


def _submitted(client: Client, jobs: Jobs, message: Message) -> bool:
    tasks = [
        {
            "taskId": name,
            "name": TASK,
            "dependsOn": needs,
            "input": chores.input_of(client, message, last=name == "last"),
        }
        for name, needs in _GRAPH.items()
    ]
    jobs.submit_job(tasks, job_id=message.body.id)
    return True


def _dispatch(client: Client) -> None:
    with client.place.backend() as backend:
        dispatcher = JobDispatcher(backend)
        client.at_work()
        looked = 0.0
        while not client.stopping:
            dispatcher.run_once(wait=0.2)
            if time.monotonic() - looked > _RECONCILE_SECONDS:
                dispatcher.reconcile()
                looked = time.monotonic()


def _unsettled(place: Place) -> int:
    return chores.unsettled(place) or len(
        chores.ended(place, "Job Created") - chores.ended(place, "Job Completed", _FAILED)
    )


SCENARIO = Scenario(
    name="jobs",
    facts=FACTS,
    roles={
        "producer": Role(work=_submit, sends=True),
        "dispatcher": Role(work=_dispatch, processes=2),
        "worker": Role(work=chores.work, processes=2, holds=True),
        "watcher": Role(work=chores.watch),
    },
    prepare=chores.prepare,
    unsettled=_unsettled,
    read_back=partial(chores.read_back, failure=_FAILED),
    weight=2,
    stores=("sqlite", "aws"),
)
