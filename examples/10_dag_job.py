"""A nightly job of five tasks: each begins when those that it needs have ended, and gets what they returned.

Run it: python examples/10_dag_job.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import postroad
from postroad.jobs import Jobs
from postroad.tasks import TaskContext, task


@task("load")
def load() -> list[int]:
    return [30, 12, 58, 12]


@task("clean")
def clean(ctx: TaskContext) -> list[int]:
    return sorted(set(ctx.dependency_outputs["load"]))


@task("total")
def total(ctx: TaskContext) -> int:
    return sum(ctx.dependency_outputs["clean"])


@task("largest")
def largest(ctx: TaskContext) -> int:
    return max(ctx.dependency_outputs["clean"], default=0)


@task("report")
def report(ctx: TaskContext) -> str:
    return f"{ctx.dependency_outputs['total']} in all, {ctx.dependency_outputs['largest']} at most"


NEEDS = {"load": [], "clean": ["load"], "total": ["clean"], "largest": ["clean"], "report": ["total", "largest"]}


@task("nightly", schedule="0 3 * * *", tz="Europe/Athens", pass_env=("POSTROAD_URL",))
def nightly(ctx: TaskContext) -> None:
    graph = [{"taskId": name, "name": name, "dependsOn": needed} for name, needed in NEEDS.items()]
    with postroad.connect() as backend:  # the store of the worker
        Jobs(backend).submit_job(graph, job_id=ctx.request_id)  # a second attempt submits the same job


if __name__ == "__main__":
    worker = f"worker --load {Path(__file__).stem} --until-idle"  # without --until-idle it waits for the next night
    with tempfile.TemporaryDirectory() as folder:
        for words in (worker, "schedule run nightly", worker, "job list", "task list --name report"):
            command = [sys.executable, "-m", "postroad", *words.split(), "--url", f"sqlite:///{folder}/postroad.db"]
            subprocess.run(command, cwd=Path(__file__).parent, check=True, stderr=subprocess.DEVNULL)
