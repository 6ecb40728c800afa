"""`postroad up` on AWS: what it needs is checked before it listens, and a later loss is outlasted."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.aws.cloud import Cloud
from tests.aws.emulators import free_port
from tests.up.conftest import StartUp, start_up
from tests.up.up import POSTROAD, run, start
from tests.waiting import eventually

from postroad.connections.aws import AwsConnection
from postroad.journal.dynamodb import DynamoRecords
from postroad.settings import default_url

pytestmark = [pytest.mark.aws, pytest.mark.slow]
__all__ = ["start_up"]


@pytest.fixture
def table(aws: AwsConnection, unique: Callable[[str], str]) -> Iterator[str]:
    """The name of a table of items that is not there yet."""
    name = unique("items")
    yield name
    if name in aws.dynamodb.list_tables()["TableNames"]:
        aws.dynamodb.delete_table(TableName=name)


@pytest.fixture
def url(ministack_url: str, table: str) -> str:
    return f"aws://us-east-1?endpoint_url={ministack_url}&table={table}"


def test_without_its_table_it_ends_with_the_command_that_makes_it(
    start_up: StartUp, url: str, table: str, tmp_path: Path
) -> None:
    refused = run(tmp_path, "--url", url, "--port", "0")
    made = subprocess.run(
        [*POSTROAD, "journal", "init", "--url", url], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    up = start_up("--url", url)

    assert refused.returncode == 3
    assert f"there is no DynamoDB table '{table}'" in refused.stderr
    assert "postroad journal init" in refused.stderr
    assert "http" not in refused.stdout
    assert made.returncode == 0, made.stderr
    assert up.get("/ready").status_code == 200


def test_a_table_that_is_lost_while_it_runs_is_waited_for(
    start_up: StartUp, aws: AwsConnection, url: str, table: str
) -> None:
    DynamoRecords(aws, table).init()
    up = start_up("--url", url)

    aws.dynamodb.delete_table(TableName=table)
    eventually(lambda: up.get("/ready").status_code == 503)
    told = up.get("/ready").json()
    DynamoRecords(aws, table).init()
    eventually(lambda: up.get("/ready").status_code == 200)

    assert f"there is no DynamoDB table '{table}'" in json.dumps(told)
    assert {part["state"] for part in up.parts().values()} == {"running"}
    assert up.stop()[0] == 0


def test_it_moves_the_events_of_agents(start_up: StartUp, village: Cloud) -> None:
    village.register("ann", "bob")
    village.subscribe("bob", "ann")
    up = start_up("--url", default_url())

    village.publish("ann", 1, 2, 3)
    found: list[int] = []

    def has_all() -> bool:
        found.extend(village.drain("bob"))
        return len(found) >= 3

    eventually(has_all)

    assert found == [1, 2, 3]
    assert up.get("/ready").status_code == 200
    assert up.stop()[0] == 0


def test_where_functions_are_to_move_events_and_none_does_it_is_not_ready_and_says_so(
    village: Cloud, tmp_path: Path
) -> None:
    (tmp_path / "postroad.toml").write_text("[agents]\nfunctions = true\n")
    port = free_port()
    process = start(tmp_path, "--url", default_url(), "--port", str(port))

    def told() -> str:
        return json.dumps(httpx.get(f"http://127.0.0.1:{port}/ready", timeout=20).json())

    try:
        eventually(lambda: "nobody moves the events" in told())
        document = told()
    finally:
        process.terminate()
        process.communicate(timeout=120)

    assert f"no function reads the stream '{village.stream}'" in document
    assert "[agents]" in document
    assert "part_waiting" in (tmp_path / "log").read_text()
