"""`tasks`: producers submit tasks, and workers run each in a child process, under a fenced lease."""

from __future__ import annotations

from functools import partial

from postroad.tasks import TaskProducer
from postroad.testing.verify import chores, workload
from postroad.testing.verify.chores import FACTS, TASK, TOPIC
from postroad.testing.verify.scenario import Client, Role, Scenario
from postroad.testing.verify.workload import Message


def _submit(client: Client) -> None:
    with client.place.backend() as backend:
        producer = TaskProducer(backend)
        client.at_work()
        for message in workload.messages(client):
            workload.publish(client, TOPIC, message, partial(_submitted, client, producer, message))


def _submitted(client: Client, producer: TaskProducer, message: Message) -> bool:
    producer.submit(TASK, chores.input_of(client, message), request_id=message.body.id)
    return True


SCENARIO = Scenario(
    name="tasks",
    facts=FACTS,
    roles={
        "producer": Role(work=_submit, processes=2, sends=True),
        "worker": Role(work=chores.work, processes=2, holds=True),
        "watcher": Role(work=chores.watch),
    },
    prepare=chores.prepare,
    unsettled=chores.unsettled,
    read_back=partial(chores.read_back, failure="Task Failed"),
    weight=4,
    stores=("sqlite", "aws"),
)
