"""What `postroad demo` tells in the terminal while the demo plays."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable

from postroad.telemetry import counted
from postroad.up.demo.notifications import PUSH_DEAD
from postroad.up.demo.story import FAILS_AFTER, open_story
from postroad.views import DemoFailure

_LOOK_SECONDS = 0.5


def sentences(failure: DemoFailure, program: str, url: str) -> str:
    """Return what is to be told about this state of the story, with the next command."""
    given = f"--url {shlex.quote(url)}"
    if failure.state == "healthy":
        return (
            "A shop takes orders, a bank posts transfers, a worker runs jobs, agents plan, a chat pushes messages.\n"
            f"In {FAILS_AFTER:g} seconds the push provider begins to refuse. Watch the dashboard."
        )
    if failure.state == "failing":
        return (
            f"The push provider refuses every push: {counted(failure.dead_letters, 'dead letter')} in {PUSH_DEAD}.\n"
            f"See why:  {program} queue groups {PUSH_DEAD} {given}\n"
            f"Repair:   {program} demo repair {given}"
        )
    if failure.state == "repaired":
        return (
            f"The provider is repaired; {counted(failure.dead_letters, 'dead letter')} wait in {PUSH_DEAD}.\n"
            f"Redrive:  {program} queue redrive {PUSH_DEAD} --yes --reason repaired {given}"
        )
    return "Every push has arrived: nothing was lost, and nothing came twice. Ctrl-C ends the demo."


async def narrate(program: str, url: str, say: Callable[[str], None]) -> None:
    """Tell each turn of the story once, until this is cancelled."""
    told = ""
    with open_story(url) as story:
        while True:
            failure = await asyncio.to_thread(story.failure)
            if failure.state != told and (failure.state != "failing" or failure.dead_letters):
                told = failure.state
                say(f"\n{sentences(failure, program, url)}")
            await asyncio.sleep(_LOOK_SECONDS)
