"""`postroad demo --once`: the whole story without anybody watching, from the first event to the check at the end."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from postroad.operations import redrive
from postroad.settings import Settings
from postroad.telemetry import counted
from postroad.up.demo.notifications import PUSH_DEAD
from postroad.up.demo.stage import Stage
from postroad.up.demo.story import FAILS_AFTER, Story, demo_database, demo_settings, playing, prepare
from postroad.up.dispatcher import run_dispatcher
from postroad.up.runners import load_modules, run_tasks
from postroad.views import DemoPlayed
from postroad.wiring import connect

Tell = Callable[[str], None]
_DRAIN_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_FAILING_SHARE = 0.75
"""The share of the time after which the provider fails, if the time is short."""


def play_once(settings: Settings, seconds: float, tell: Tell) -> DemoPlayed:
    """Play the whole story in a temporary directory and return what came of it.

    Args:
        settings: The tenant and the app.
        seconds: How long there is traffic.
        tell: Is called with a sentence at each turn of the story.
    """
    started_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="postroad-demo-") as folder, ExitStack() as stack:
        settings = demo_settings(replace(settings, url=f"sqlite:///{Path(folder) / 'postroad-demo.db'}"))
        load_modules(settings.load)
        backend = stack.enter_context(connect(settings.url))
        prepare(backend, settings)
        database = stack.enter_context(closing(demo_database(settings.url)))
        stage = Stage(backend=backend, database=database, settings=settings)
        with stage.working(partial(run_tasks, backend, settings), partial(run_dispatcher, backend, settings)):
            with playing(stage):
                dead, moved = _tell_story(stage, seconds, tell)
                stage.end()
        counts, checked = database.scenes(), database.check()
    return DemoPlayed(
        scenes=len(counts),
        published=sum(each.published for each in counts),
        handled=sum(each.handled for each in counts),
        dead_lettered=dead,
        redriven=moved,
        lost=checked.lost,
        duplicated_effects=checked.duplicated_effects,
        ledger_sum=str(checked.ledger_sum),
        seconds=round(time.monotonic() - started_at, 3),
    )


def _tell_story(stage: Stage, seconds: float, tell: Tell) -> tuple[int, int]:
    """Play the failure, repair it and redrive; return how many dead letters there were, and how many were redriven."""
    backend, database = stage.backend, stage.database
    story = Story(backend, database)
    fails_after = min(FAILS_AFTER, seconds * _FAILING_SHARE)
    database.begin_story(fails_after)
    tell(f"five scenes publish for {seconds:g} s; after {fails_after:g} s the push provider refuses every push")
    stage.stop.wait(seconds)
    # Without a dead letter there is nothing to repair.
    _wait(stage, lambda: story.failure().dead_letters > 0)
    stage.quiet.set()
    tell("nothing new is published; handlers finish what there is")
    _wait(stage, lambda: database.check().lost == story.failure().dead_letters)
    dead = story.failure().dead_letters
    tell(f"{counted(dead, 'dead letter')} in {PUSH_DEAD}; the provider is repaired, and they are redriven")
    story.repair()
    moved = redrive(backend, PUSH_DEAD, reason="the push provider was repaired").moved
    _wait(stage, lambda: database.check().lost == 0)
    return dead, moved


def _wait(stage: Stage, done: Callable[[], bool]) -> None:
    """Wait until it is done; not for ever, since the check at the end tells what is missing."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while not done() and time.monotonic() < deadline and not stage.stop.wait(_LOOK_SECONDS):
        pass
