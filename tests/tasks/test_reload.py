"""Children that are started anew when a source file changes."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tasks.benches import Bench
from tests.waiting import eventually

pytestmark = pytest.mark.slow

CODE = """
from postroad.tasks import task
from {helper} import word

@task("say-{name}")
def say(input, ctx):
    return word()
"""
WAITING = """
import time
from pathlib import Path

def word():
    Path({began!r}).touch()
    while not Path({until!r}).exists():
        time.sleep(0.01)
    return "old"
"""


class Source:
    """A module of tasks, and a module that it imports, both of which change."""

    def __init__(self, folder: Path) -> None:
        self.name, self.helper = f"tasks_{os.getpid()}_{id(self)}", f"words_{os.getpid()}_{id(self)}"
        self._folder = folder
        self._now = time.time() - 1_000
        self.write(f"{self.name}.py", CODE.format(helper=self.helper, name=self.name))
        self.say("one")

    @property
    def task(self) -> str:
        return f"say-{self.name}"

    def say(self, word: str) -> None:
        self.write(f"{self.helper}.py", f"def word():\n    return {word!r}\n")

    def write_helper(self, text: str) -> None:
        self.write(f"{self.helper}.py", text)

    def write(self, name: str, text: str) -> None:
        """Write the file with a time of its own, as if somebody had taken a while to do it."""
        path = self._folder / name
        path.write_text(text)
        self._now += 10
        os.utime(path, (self._now, self._now))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return Source(tmp_path)


@pytest.fixture
def reloading(bench: Bench, source: Source) -> Iterator[Bench]:
    worker = bench.worker(imports=[source.name], reload=True, concurrency=1)
    running = threading.Thread(target=worker.run)
    running.start()
    yield bench
    worker.stop()
    running.join()


def said(bench: Bench, source: Source) -> object:
    return bench.ended(source.task).output


def test_a_changed_file_is_run_without_a_restart(reloading: Bench, source: Source) -> None:
    assert said(reloading, source) == "one"

    source.say("two")

    eventually(lambda: said(reloading, source) == "two")


def test_a_running_task_finishes_with_the_code_that_it_began_with(
    reloading: Bench, source: Source, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    began, until = tmp_path / "began", tmp_path / "until"
    assert said(reloading, source) == "one"
    with caplog.at_level(logging.INFO, "postroad.tasks"):
        source.write_helper(WAITING.format(began=str(began), until=str(until)))
        eventually(lambda: caplog.text.count("worker_reloaded") == 1)
        handle = reloading.producer.submit(source.task)
        eventually(began.exists)
        source.say("new")
        eventually(lambda: caplog.text.count("worker_reloaded") == 2)
        until.touch()
        eventually(lambda: reloading.state(handle.request_id).state == "completed")

    assert reloading.state(handle.request_id).output == "old"
    assert said(reloading, source) == "new"


def test_code_that_cannot_be_imported_leaves_the_old_one_running(
    reloading: Bench, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    assert said(reloading, source) == "one"

    source.write_helper("def word(:\n")
    eventually(lambda: "worker_reload_failed" in caplog.text)
    meanwhile = said(reloading, source)
    source.say("mended")

    assert meanwhile == "one"
    assert "SyntaxError" in caplog.text
    eventually(lambda: said(reloading, source) == "mended")
