"""How the models are run: the same examples in every `make test`, and new ones in a soak."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

Machine = Any
"""What returns a new state machine when it is called; Hypothesis declares classes only."""

# No sum of these is a whole number of seconds, as all leases, delays and windows are: nothing ends at the very moment
# of a check.
STEPS = [1.001, 4.001, 11.001, 61.001, 301.001]


def model_settings(steps: int) -> settings:
    """Return 200 examples that are always the same; with `--hypothesis-profile=soak`, those of that profile."""
    if settings.get_current_profile_name() == "soak":
        return settings(stateful_step_count=steps)
    return settings(max_examples=200, stateful_step_count=steps, derandomize=True, database=None)


def check_model(machine: Machine, *, steps: int = 20) -> None:
    """Fail if the product and the model differ after any step of any example."""
    run_state_machine_as_test(machine, settings=model_settings(steps))


def check_finds(machine: Machine, *, steps: int = 20) -> None:
    """Fail unless the model notices the bug that the caller has planted."""
    found = settings(model_settings(steps), phases=[Phase.generate], database=None, print_blob=False)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=found)
