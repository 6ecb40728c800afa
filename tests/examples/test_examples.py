"""Every example is short, runs alone, soon, and says something; those that are servers also serve."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.aws.emulators import free_port, ministack
from tests.postgres import postgres, postgres_dsn
from tests.waiting import eventually

__all__ = ["postgres", "postgres_dsn"]

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
TITLES = (
    "first_event",
    "two_services",
    "async_fastapi",
    "sessions",
    "request_response",
    "outbox_postgres",
    "exactly_once",
    "task_worker",
    "schedule",
    "dag_job",
    "agents_over_http",
    "chat_notifications",
    "dead_letters",
    "own_topology",
    "aws",
    "async_litestar",
)
ON_POSTGRES, ON_AWS = FOLDER / "06_outbox_postgres.py", FOLDER / "15_aws.py"
BY_THEMSELVES = [path for path in EXAMPLES if path not in (ON_POSTGRES, ON_AWS)]
SERVERS = ["03_async_fastapi", "16_async_litestar"]
FEWER_LINES = 60
# Alone they take less than ten, and fifty on AWS, where a stop waits for the last poll; the other tests of a run share
# the machine.
MOST_SECONDS = 180.0
LOGGED = {
    "02_two_services.py": {"bus_retried", "bus_dead_lettered"},
    "07_exactly_once.py": {"consumer_retried"},
    "08_task_worker.py": {"task_retried"},
    "13_dead_letters.py": {"bus_dead_lettered"},
    "15_aws.py": {"bus_retried", "bus_dead_lettered"},
}
"""The failures that an example provokes, which the log reports."""


def environment(**variables: str) -> dict[str, str]:
    foreign = ("POSTROAD_", "AWS_", "PG_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | variables


def run(path: Path, directory: Path, **variables: str) -> str:
    """Run an example in an empty directory, and return what it prints."""
    started = time.monotonic()
    command = [sys.executable, "-W", "error", str(path)]

    done = subprocess.run(command, cwd=directory, env=environment(**variables), capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stderr.splitlines()} == LOGGED.get(path.name, set()), done.stderr
    assert len(done.stdout.splitlines()) >= 2
    assert time.monotonic() - started < MOST_SECONDS
    assert list(directory.iterdir()) == []
    return done.stdout


def test_the_examples_are_numbered_without_gaps_in_the_order_of_the_guides() -> None:
    assert [path.name for path in EXAMPLES] == [f"{number:02}_{title}.py" for number, title in enumerate(TITLES, 1)]


@pytest.mark.parametrize("path", BY_THEMSELVES, ids=lambda path: path.name)
def test_an_example_runs_alone_and_prints_something(path: Path, tmp_path: Path) -> None:
    run(path, tmp_path)


def test_the_example_of_the_outbox_runs_on_postgresql_and_can_be_repeated(postgres_dsn: str, tmp_path: Path) -> None:
    first, second = (run(ON_POSTGRES, tmp_path, PG_DSN=postgres_dsn) for _ in range(2))

    assert first == second
    assert "1 event was published\nbilling sends an invoice over 30\n" in first


@pytest.mark.aws
def test_the_example_of_aws_runs_on_an_emulator_and_removes_its_queues(tmp_path: Path) -> None:
    (tmp_path / "emulator").mkdir()
    (tmp_path / "here").mkdir()
    with ministack(tmp_path / "emulator") as url:
        account = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        first, second = (run(ON_AWS, tmp_path / "here", **account) for _ in range(2))

    assert first == second
    assert first.startswith("shop: A-1 is paid\nshop: A-2 is paid\n")
    assert [line.split()[0] for line in first.splitlines()[2:]] == [
        "orders--billing",
        "orders--billing--dead",
        "orders--shop",
        "orders--shop--dead",
    ]


def test_the_shop_sends_back_what_billing_gave_up(tmp_path: Path) -> None:
    assert run(FOLDER / "02_two_services.py", tmp_path) == "shop: A-1 is paid\nshop: A-2 is paid\n"


def test_the_nightly_job_ends_with_its_report(tmp_path: Path) -> None:
    printed = run(FOLDER / "10_dag_job.py", tmp_path)

    assert re.search(r"^schedule-nightly-\S+ +completed +5 ", printed, re.M)
    assert re.search(r"\.report +report +completed ", printed)


def test_the_readme_of_the_examples_names_each_of_them() -> None:
    named = re.findall(r"\((\d\d_\w+\.py)\)", (FOLDER / "README.md").read_text())

    assert named == [path.name for path in EXAMPLES]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_read_in_a_minute_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text()
    purpose = ast.get_docstring(ast.parse(text)) or ""

    assert len(text.splitlines()) < FEWER_LINES
    assert re.search(rf"^(Run|Try) it: .*python examples/{path.name}$", purpose, re.M)


@contextmanager
def serving(name: str, directory: Path) -> Iterator[str]:
    """Serve an example with the command that its text gives, and stop it as a supervisor would."""
    command = re.search(r"^Serve it: POSTROAD_URL=\S+ (uvicorn .+)$", (FOLDER / f"{name}.py").read_text(), re.M)
    assert command is not None
    port = free_port()
    arguments = [*command[1].split(), "--port", str(port)]
    with (directory / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-u", "-m", *arguments],
            cwd=FOLDER.parent,
            env=environment(POSTROAD_URL=f"sqlite:///{directory}/shop.db"),
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        code = server.wait(120)
    assert code in (0, -15), (directory / "log").read_text()


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_handles_what_its_requests_publish_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    with serving(name, tmp_path) as url:
        eventually(lambda: httpx.post(f"{url}/orders", json={"order_id": "A-1"}).status_code == 202)
        eventually(lambda: "a receipt for A-1" in (tmp_path / "log").read_text())

    assert "Application shutdown complete" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_refuses_what_is_no_order(name: str, tmp_path: Path) -> None:
    with serving(name, tmp_path) as url:
        eventually(lambda: httpx.post(f"{url}/orders", json={"order_id": "A-1"}).status_code == 202)

        answer = httpx.post(f"{url}/orders", json={"order": 7})

    assert answer.status_code in (400, 422)
