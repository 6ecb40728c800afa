"""When a part that died is started again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from postroad.settings import Settings
from postroad.up.children import Child, ChildConfig, Notice, Restarts

pytestmark = pytest.mark.slow


def test_the_pause_doubles_from_a_fifth_of_a_second_to_ten_seconds() -> None:
    restarts, pauses = Restarts(), []
    for death in range(9):
        restarts = restarts.died(death * 61.0, started_at=death * 61.0 - 1)
        pauses.append(restarts.delay)

    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    assert not restarts.failed


def test_a_minute_alive_makes_the_pause_short_again() -> None:
    restarts = Restarts().died(1.0, started_at=0.0).died(2.0, started_at=1.0)

    assert restarts.died(62.5, started_at=2.4).delay == 0.2


def test_five_deaths_within_a_minute_are_a_failure() -> None:
    restarts = Restarts()
    for death in range(4):
        restarts = restarts.died(float(death), started_at=float(death))

    assert not restarts.failed
    assert restarts.died(59.0, started_at=58.0).failed
    assert not restarts.died(61.0, started_at=60.5).failed


def test_a_server_starts_without_what_it_does_not_need() -> None:
    program = "import sys, postroad.up.child, postroad.http.app; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert "postroad.http.app" in loaded
    assert not {"boto3", "botocore", "psycopg", "postroad.bus", "postroad.operations.diagnosis"}.intersection(loaded)
    assert not [name for name in loaded if name.startswith("postroad.topology")]


@pytest.mark.parametrize(
    "first",
    [
        OSError("Resource temporarily unavailable"),
        # The event loop of Python 3.11 waits for each process on a thread.
        RuntimeError("can't start new thread"),
        "import os, sys; os.write(int(sys.argv[1]), b'{\"parts\": [')",
    ],
    ids=["cannot be started", "cannot be waited for", "dies while it reports"],
)
def test_a_child_is_started_again_whatever_its_end_was(
    first: Exception | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: Iterator[Exception | str] = chain([first], repeat("import time; time.sleep(60)"))
    start = asyncio.create_subprocess_exec

    async def start_next(*_: str, pass_fds: list[int], **options: Any) -> asyncio.subprocess.Process:
        program = next(programs)
        if isinstance(program, Exception):
            raise program
        return await start(sys.executable, "-c", program, str(pass_fds[0]), pass_fds=pass_fds, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_next)
    settings = Settings(url=f"sqlite:///{tmp_path}/x.db")
    config = ChildConfig(settings=settings, admin="x", parent=os.getpid(), report_to=-1)

    async def live() -> int:
        child = Child("server", config, parts=("server",), listener=None, changed=lambda: None)
        running = asyncio.create_task(child.keep_running())
        async with asyncio.timeout(60):
            while not running.done() and (child.parts()[0].pid is None or not child.parts()[0].restarts):
                await asyncio.sleep(0.02)
        assert not running.done()
        child.notify(Notice(parts=(), phase="closing"))
        child.kill()
        await running
        return child.parts()[0].restarts

    assert asyncio.run(live()) == 1
