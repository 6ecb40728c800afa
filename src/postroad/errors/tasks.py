"""What tasks refuse."""

from __future__ import annotations

from postroad.errors.refusals import InvalidInput


class InvalidTask(InvalidInput):
    """A task that cannot be submitted or registered."""

    slug = "invalid-task"
    remedy = "Correct the field that the message names; nothing was submitted."


class UnknownTask(InvalidInput):
    """A name that no registry of tasks knows; names are looked up, never imported."""

    slug = "unknown-task"
    remedy = "Register it with @task or registry.register, and name its module with `--import`."
