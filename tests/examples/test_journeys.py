"""The first things people do, on the embedded engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.examples.grounds import Ground, ground
from tests.examples.journeys import JOURNEYS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("journey", JOURNEYS, ids=lambda journey: journey.__name__)
def test_a_journey_ends_well_on_one_file(journey: Callable[[Ground], None], tmp_path: Path) -> None:
    with ground(f"sqlite:///{tmp_path}/journey.db") as here:
        journey(here)
