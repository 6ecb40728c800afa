"""A job of four tasks: two wait for the first, run side by side, and the last gets what both returned.

Run it: python examples/10_dag_job.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import postroad
from postroad.jobs import Jobs
from postroad.tasks import TaskContext, TaskProducer, task


@task("load-orders")
def load_orders(input: dict[str, Any], ctx: TaskContext) -> list[int]:
    return [30, 12, 58]


@task("sum-up")
def sum_up(input: dict[str, Any], ctx: TaskContext) -> Any:
    return sum(ctx.dependency_outputs["load"])


@task("find-largest")
def find_largest(input: dict[str, Any], ctx: TaskContext) -> Any:
    return max(ctx.dependency_outputs["load"])


@task("report")
def report(input: dict[str, Any], ctx: TaskContext) -> str:
    return f"{input['day']}: {ctx.dependency_outputs['sum']} in all, {ctx.dependency_outputs['max']} at most"


GRAPH = [
    {"taskId": "load", "name": "load-orders"},  # a task starts when all that it depends on are completed
    {"taskId": "sum", "name": "sum-up", "dependsOn": ["load"]},
    {"taskId": "max", "name": "find-largest", "dependsOn": ["load"]},
    {"taskId": "report", "name": "report", "dependsOn": ["sum", "max"], "input": {"day": "Monday"}},
]


def main(url: str) -> None:
    with postroad.connect(url) as backend:
        jobs = Jobs(backend)
        jobs.submit_job(GRAPH, job_id="monday")
        worker = f"-m postroad worker --load {Path(__file__).stem} --until-idle --url {url}".split()
        subprocess.run([sys.executable, *worker], cwd=Path(__file__).parent, check=True, stderr=subprocess.DEVNULL)
        print(jobs.graph("monday"))
        last = TaskProducer(backend).status("monday.report")
        print(last and last.output)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(f"sqlite:///{directory}/postroad.db")
