"""`python -m benchmarks` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.__main__ import app
from typer.testing import CliRunner, Result


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_the_rows_can_be_listed() -> None:
    done = run("--list", "--json")

    items = json.loads(done.stdout)["items"]
    assert done.exit_code == 0
    assert all(set(item) == {"name", "what", "peer", "target"} for item in items)
    assert len({item["name"] for item in items}) == len(items)


def test_an_unknown_row_is_refused_with_the_list() -> None:
    done = run("--only", "one-hueys")

    assert done.exit_code == 2
    assert "Did you mean one-huey?" in done.stderr
    assert "backlog-1m" in done.stderr


def test_no_rounds_at_all_are_refused() -> None:
    done = run("--rounds", "0")

    assert done.exit_code == 2
    assert "--rounds" in done.stderr


@pytest.mark.slow
def test_a_quick_run_of_one_row_writes_everything(tmp_path: Path) -> None:
    done = run("--only", "codec", "--quick", "--rounds", "1", "--out", str(tmp_path), "--json")

    document = json.loads(done.stdout)
    assert done.exit_code == 0
    assert [row["name"] for row in document["rows"]] == ["codec"]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "RESULTS.md",
        "codec.svg",
        "results.json",
    ]


def test_pages_are_not_written_out_of_nothing(tmp_path: Path) -> None:
    done = run("--render", "--out", str(tmp_path))

    assert done.exit_code == 2
    assert "make bench" in done.stderr
