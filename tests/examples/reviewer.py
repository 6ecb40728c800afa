"""A worker that reviews code in a process of its own: python -m tests.examples.reviewer URL CONTROL ANSWERS TELEMETRY

It takes requests off one queue, answers on another, tells what it does on a third, and ends with its standard input.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from tests.examples.grounds import ground
from tests.examples.journeys import QUICK
from tests.sessions.plans import Note
from tests.sessions.reviews import ReviewLoop, ReviewResult

from postroad.bus import EventBus
from postroad.sessions import PromptExecuted, PromptResponse, Session, TokenUsage, ToolInvoked, ToolResult


class Telling:
    """An adapter that publishes its telemetry on a bus."""

    def __init__(self, telemetry: EventBus) -> None:
        self._telemetry = telemetry

    def evaluate(self, prompt: str, *, session: Session, **limits: Any) -> PromptResponse[ReviewResult]:
        who = f"worker-{os.getpid()}"
        self._telemetry.publish(ToolInvoked("review", who, "read", {}, ToolResult("read", Note(prompt))))
        response = PromptResponse("review", output=ReviewResult([f"{prompt} is fine"]))
        self._telemetry.publish(PromptExecuted("review", who, response, usage=TokenUsage(7, 3)))
        return response


def main(url: str, control: str, answers: str, telemetry: str) -> None:
    """Serve until nobody writes to us any more."""
    with ground(url) as here:
        requests, told = here.bus(control, QUICK), here.bus(telemetry, QUICK)
        adapter = Telling(told)
        with ReviewLoop(adapter=adapter, bus=requests, response_bus=here.bus(answers, QUICK)):
            requests.start_receiver()
            print("ready", flush=True)
            sys.stdin.read()
            requests.stop_receiver()


if __name__ == "__main__":
    main(*sys.argv[1:])
