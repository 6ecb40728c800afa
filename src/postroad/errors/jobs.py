"""What jobs refuse."""

from __future__ import annotations

from postroad.errors.refusals import InvalidInput


class InvalidJob(InvalidInput):
    """A graph of tasks that cannot be run."""

    slug = "invalid-job"
    remedy = "Correct the tasks that the message names; nothing was submitted."
