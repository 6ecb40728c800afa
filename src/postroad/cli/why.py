"""`postroad why`: one story for any id."""

from __future__ import annotations

from typing import Annotated

import typer

from postroad.cli.call import Call
from postroad.cli.verbs import add_verb


def add_to(app: typer.Typer) -> None:
    """Make the verb part of the program."""
    add_verb(app, "why", why, example="postroad why req-123")


def why(
    call: Call, name: Annotated[str, typer.Argument(metavar="ID", help="The id of a task or job.")]
) -> None:  # fmt: skip
    """Tell what happened to a task or job, how it stands, and what would move it on."""
    from postroad.operations.why import why as story_of
    from postroad.telemetry import legible

    settings = call.settings()
    with call.backend() as backend:
        story = story_of(backend, name, tenant=settings.tenant, app=settings.app)
    steps = [
        f"{step.at}  {'✓' if step.ok else '✗'} {legible(' · '.join(filter(None, (step.what, step.by, step.detail))))}"
        for step in story.steps
    ]
    call.show(
        story, f"{story.verdict.replace('_', ' ')}  {legible(story.summary)}", *steps,
        f"next: {legible(story.next)}",
    )  # fmt: skip
