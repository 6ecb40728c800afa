"""`tasks`: producers submit tasks, and workers run each in a child process, under a fenced lease."""

from __future__ import annotations

import functools
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import generate_latest

from postroad.errors import NonRetryable, PostroadError
from postroad.inbox import Inbox
from postroad.journal import JournalEvent, every_event, tasks_by_state
from postroad.tasks import Reconciler, TaskContext, TaskProducer, TaskWorker, ensure_queues, task
from postroad.testing.verify import workload
from postroad.testing.verify.scenario import Client, Facts, History, Place, Role, Scenario
from postroad.testing.verify.workload import Body, Message
from postroad.wiring import Backend

TOPIC = "tasks"
TASK = "verify-chore"
FACTS = Facts(subscriptions={TOPIC: (TOPIC,)}, ordered=False, max_receives=None)
_TENANTS = ("default", "other")
_LOOK_SECONDS = 0.01
_WATCH_SECONDS = 0.1
_ORPHAN_SECONDS = 2.0
_STALE_SECONDS = 5.0
_STATES = {
    "Task Processing Started": "started",
    "Task Heartbeat": "heartbeat",
    "Task Completed": "completed",
    "Task Failed": "failed",
    "Task Timeout": "timeout",
    "Task Cancelled": "cancelled",
}
_JOB_STATES = {"Job Created": "created", "Job Completed": "completed", "Job Failure Detected": "failed"}


def prepare(place: Place, backend: Backend) -> None:
    backend.journal().init()
    ensure_queues(backend, TOPIC)


def input_of(client: Client, message: Message, *, last: bool = True, tenant: str = _TENANTS[0]) -> dict[str, Any]:
    """Return the input of a task, with the secret of its tenant; the last one of a message takes effect."""
    place, body = msgspec.to_builtins(client.place), msgspec.to_builtins(message.body)
    return {"body": body, "place": place, "last": last, "canary": canary_of(tenant)}


def canary_of(tenant: str) -> str:
    return f"canary-of-{tenant}"


@task(TASK)
def chore(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    """Take effect once, in the database of effects, or fail for good."""
    place, body = msgspec.convert(input["place"], Place), msgspec.convert(input["body"], Body)
    history = _history(place)
    history.write("child", id=ctx.request_id, run=ctx.run, pid=os.getpid(), event="spawned")
    if body.fails > 1:
        raise NonRetryable("fails on purpose")
    if not input["last"]:
        return {}
    began = time.monotonic()
    workload.take_effect_once(_inbox(place.dsn), TOPIC, body.id)
    history.write("handled", sub=TOPIC, id=body.id, key=body.key, n=body.n, t0=began)
    return {"id": body.id}


_history = functools.cache(lambda place: History(place.history, f"task-{os.getpid()}"))
_inbox = functools.cache(Inbox.open)


def _submit(client: Client, backend: Backend) -> None:
    """Submit tasks of one tenant; the next producer has another one."""
    tenant = _TENANTS[client.config.index % len(_TENANTS)]
    producer = TaskProducer(backend, tenant_id=tenant)

    def submit(message: Message) -> None:
        producer.submit(TASK, input_of(client, message, tenant=tenant), request_id=message.body.id)

    workload.publish_all(client, TOPIC, submit)


def work(client: Client, backend: Backend) -> None:
    """Run tasks and advance jobs until the run ends."""
    worker = TaskWorker(
        backend,
        imports=[__name__],
        concurrency=2,
        wait=0.2,
        visibility_extension=client.place.visibility,
        extension_interval=client.place.visibility / 4,
        max_attempts=20,
        worker_id=client.name,
        drain_timeout=5.0,
    )
    # Who its children are; the file stays when this process is killed.
    children = Path(client.place.directory) / f"children-{os.getpid()}"
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(worker.run)
        client.at_work()
        while not client.stopping and not running.done():
            pids = worker.child_pids()
            client.announce(holding=bool(pids))
            children.write_text(" ".join(map(str, pids)))
            time.sleep(_LOOK_SECONDS)
        worker.stop()
        # A store that was away at the start raises here, and the process is started again.
        running.result()
    (Path(client.place.directory) / f"metrics-{client.name}").write_bytes(generate_latest())


def watch(client: Client, backend: Backend) -> None:
    """Look for children that live on after their worker, and send what a broken submission left unsent."""
    since: dict[int, float] = {}
    reconcilers = [Reconciler(backend, tenant_id=each, stale_after=_STALE_SECONDS) for each in _TENANTS]
    client.at_work()
    look_at = time.monotonic()
    while not client.stopping:
        now = time.monotonic()
        since = {pid: since.get(pid, now) for pid in _abandoned(client.place)}
        for pid in [pid for pid, first in since.items() if now - first > _ORPHAN_SECONDS]:
            client.record("child", id=f"process {pid}", run=0, pid=pid, event="orphan")
            since[pid] = math.inf
        if now >= look_at:
            look_at = now + _STALE_SECONDS
            for reconciler in reconcilers:
                with suppress(PostroadError):
                    reconciler.run_once()
        time.sleep(_WATCH_SECONDS)


def _abandoned(place: Place) -> set[int]:
    """Return the children that live although their worker is gone."""
    found: set[int] = set()
    for path in Path(place.directory).glob("children-*"):
        if not _is_alive(int(path.name.partition("-")[2])):
            found.update(pid for pid in map(int, path.read_text().split()) if _is_alive(pid))
    return found


def _is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def unsettled(place: Place, backend: Backend) -> int:
    states = [tasks_by_state(backend.journal(), tenant) for tenant in _TENANTS]
    return sum(len(each["pending"]) + len(each["processing"]) for each in states)


def ended(backend: Backend, *event_types: str) -> set[str]:
    """Return the tasks or jobs that have an event of one of these types."""
    journal = backend.journal()
    asked = product(_TENANTS, event_types)
    events = (every_event(journal, "GSI4", tenant=tenant, event_type=each) for tenant, each in asked)
    return {event.entity_id for each in events for event in each}


def read_back(place: Place, backend: Backend, history: History, failure: str) -> None:
    """Write down the events as they were committed, and what failed for good by an event of this type."""
    for failed in ended(backend, failure):
        history.write("dead", sub=TOPIC, id=failed)
    read_journal(place, backend, history)


def read_journal(place: Place, backend: Backend, history: History) -> None:
    """Write down what the journal has, and check that the states agree with it (I26) and tenants are apart (I29)."""
    from postroad.journal.maintenance import verify

    offset = time.monotonic() - time.time()
    differences, foreign = [], []
    for tenant in _TENANTS:
        events = list(every_event(backend.journal(), "PK", tenant=tenant))
        # The lines of one file are in the order of their times.
        with closing(History(place.history, f"journal-{tenant}")) as committed:
            for event in events:
                _commit(committed, event, event.timestamp / 1_000 + offset)
        differences += verify(backend.journal(), tenant).differences
        foreign += [f"{event.event_type} of {tenant}" for event in events if _has_foreign(event, tenant)]
    history.check("I26", not differences, f"{len(differences)} states differ from their events")
    # What processes of all tenants logged and counted, in which no secret belongs.
    directory = Path(place.directory)
    for path in (*(directory / "stderr").glob("*"), *directory.glob("metrics-*")):
        told = path.read_text(errors="replace")
        foreign += [path.name] if any(canary_of(each) in told for each in _TENANTS) else []
    history.check("I29", not foreign, f"{len(foreign)} answers or files have a foreign secret {foreign[:3]}")


def _commit(committed: History, event: JournalEvent, at: float) -> None:
    if (state := _STATES.get(event.event_type)) is not None:
        run, by = event.properties.get("run"), event.properties.get("token")
        committed.write("task", t=at, id=event.entity_id, run=run, state=state, by=by)
    elif (state := _JOB_STATES.get(event.event_type)) is not None:
        # What each task of a new job depends on, by request ids.
        job, tasks = event.entity_id, event.properties.get("tasks") or ()
        needs = {f"{job}.{each['taskId']}": [f"{job}.{other}" for other in each["dependsOn"]] for each in tasks}
        committed.write("job", t=at, id=job, state=state, needs=needs)


def _has_foreign(event: JournalEvent, tenant: str) -> bool:
    """Return whether an event, as its tenant reads it, has the secret of another."""
    text = repr((event.properties, event.context))
    return any(canary_of(each) in text for each in _TENANTS if each != tenant)


SCENARIO = Scenario(
    facts=FACTS,
    roles={
        "producer": Role(work=_submit, processes=2, sends=True),
        "worker": Role(work=work, processes=2, holds=True),
        "watcher": Role(work=watch),
    },
    prepare=prepare,
    unsettled=unsettled,
    read_back=functools.partial(read_back, failure="Task Failed"),
    weight=4,
)
