"""Scene `tasks`: jobs of five tasks, which a worker runs in processes of their own, in the order of their graph."""

from __future__ import annotations

import threading
from collections import Counter

from postroad.jobs import Jobs
from postroad.tasks import TaskProducer
from postroad.up.demo.database import record_published
from postroad.up.demo.stage import Stage

SCENE = "tasks"
MODULE = "postroad.up.demo.store_tasks"
"""Loaded by the workers alone: its tasks are registered where they run."""
STORES = ("maison-blanche", "north-and-pine", "casa-verde", "the-wool-room", "kiln-and-clay", "bay-leaf")
MARKETS = ("fashion", "furniture", "kitchen", "garden")
_LOOK_SECONDS = 0.5
GRAPH = (
    {"taskId": "scrape-store", "name": "scrape-store"},
    {"taskId": "analyze-competitors", "name": "analyze-competitors"},
    {"taskId": "color-tags", "name": "color-tags", "dependsOn": ["scrape-store"]},
    {"taskId": "font-pairing", "name": "font-pairing", "dependsOn": ["scrape-store"]},
    {"taskId": "compile-result", "name": "compile-result", "dependsOn": ["color-tags", "font-pairing"]},
)


def play(stage: Stage) -> None:
    """Submit jobs and record what became of their tasks until the stage stops; the part `worker` runs them."""
    jobs = Jobs(stage.backend, tenant_id=stage.settings.tenant, app=stage.settings.app)
    with stage.working(lambda stop: _follow(stage, jobs, stop)):
        _submit(stage, jobs)
        for _ in stage.beats(0.25):
            _submit(stage, jobs)


def _submit(stage: Stage, jobs: Jobs) -> None:
    store, market = stage.chance.choice(STORES), stage.chance.choice(MARKETS)
    job_id = f"{store}-{stage.chance.getrandbits(40):010x}"
    jobs.submit_job([{**each, "input": {"store": store, "market": market}} for each in GRAPH], job_id=job_id)
    with stage.database.transaction() as connection:
        for each in GRAPH:
            record_published(connection, SCENE, f"{job_id}.{each['taskId']}")


def _follow(stage: Stage, jobs: Jobs, stop: threading.Event) -> None:
    """Record the tasks of every job that has ended, with the attempts that the journal holds."""
    producer = TaskProducer(stage.backend, tenant_id=stage.settings.tenant, app=stage.settings.app)
    while not stop.wait(_LOOK_SECONDS):
        open_tasks = stage.database.open_events(SCENE)
        for job_id in {_job_of(request_id) for request_id in open_tasks}:
            status = jobs.job_status(job_id)
            if status is not None and status.status in ("completed", "failed", "cancelled"):
                for request_id in (each for each in open_tasks if _job_of(each) == job_id):
                    happened = Counter(event.event_type for event in producer.history(request_id))
                    completed, failures = happened["Task Completed"], happened["Task Processing Failed"]
                    if completed:
                        stage.database.effect(SCENE, request_id, "task", times=completed, failures=failures)


def _job_of(request_id: str) -> str:
    return request_id.rpartition(".")[0]
