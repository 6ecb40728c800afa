"""The buses in the place of weakincentives' own: its events travel, its Session and MainLoop work on them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.sessions.weakincentives_environment import run

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SOURCES = sorted((HERE.parents[1] / "src" / "postroad").rglob("*.py"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_its_session_and_its_main_loop_work_on_our_bus() -> None:
    done = run(HERE / "wink" / "on_one_bus.py")

    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_its_telemetry_arrives_in_another_process_as_it_was_sent(tmp_path: Path) -> None:
    done = run(HERE / "wink" / "across_processes.py", f"sqlite:///{tmp_path}/b.db")

    assert done.returncode == 0, done.stderr


def test_nothing_is_imported_from_it() -> None:
    imported = {
        name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }

    assert not [name for name in imported if name.startswith("weakincentives")]
