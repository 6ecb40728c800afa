"""Why: the story of whatever an id names."""

from __future__ import annotations

from contextlib import suppress

from postroad.errors import InvalidInput, NotFound
from postroad.jobs import JobViews, job_story
from postroad.journal import Story
from postroad.ports import Store
from postroad.tasks import task_story


def why(backend: Store, name: str, *, tenant: str, app: str) -> Story:
    """What happened to the task or job of this id and what would move it on, or `NotFound`."""
    # What cannot be an id is not found either.
    with suppress(InvalidInput):
        story = job_story(JobViews.of(backend, tenant_id=tenant, app=app), backend.journal(), tenant, name)
        if story is not None:
            return story
    with suppress(InvalidInput):
        story = task_story(backend, tenant, name)
        if story is not None:
            return story
    raise NotFound(
        f'nothing is known of "{name[:300]}"',
        remedy="Give the request id of a task or the id of a job, as `postroad task submit` and `job submit` print it.",
    )
