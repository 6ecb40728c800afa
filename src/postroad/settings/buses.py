"""What the environment tells a bus on SQS, under the names that WINK gave it and under our own."""

from __future__ import annotations

import os
from collections.abc import Mapping

_PREFIXES = ("POSTROAD_SQS_", "WINK_SQS_")


def bus_variable(name: str, env: Mapping[str, str] | None = None) -> tuple[str, str] | None:
    """The variable that is set and its value, `POSTROAD_SQS_…` before `WINK_SQS_…`; an empty one counts as unset."""
    environment = os.environ if env is None else env
    found = ((prefix + name, environment.get(prefix + name, "")) for prefix in _PREFIXES)
    return next(((variable, value) for variable, value in found if value), None)
