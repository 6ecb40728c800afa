"""What tasks refuse."""

from __future__ import annotations

from postroad.errors.refusals import InvalidInput
from postroad.errors.root import PostroadError


class InvalidTask(InvalidInput):
    """A task that cannot be submitted or registered."""

    slug = "invalid-task"
    remedy = "Correct the field that the message names; nothing was submitted."


class UnknownTask(InvalidInput):
    """A name that no registry of tasks knows; names are looked up, never imported."""

    slug = "unknown-task"
    remedy = "Register it with @task or registry.register, and name its module with `--import`."


class Conflict(PostroadError):
    """It exists already, and is not in the state or of the content that this needs."""

    slug = "conflict"
    status = 409
    remedy = "Look at it first; use another id for something new."


class NotFound(PostroadError):
    """There is nothing of this id."""

    slug = "not-found"
    status = 404
    remedy = "Name an id that was submitted under this tenant."
