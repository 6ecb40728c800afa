"""The first things people do, on emulated AWS: the same journeys, on queues and topics of SQS and SNS."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.examples.grounds import Ground, ground
from tests.examples.journeys import JOURNEYS

pytestmark = [pytest.mark.aws, pytest.mark.slow]


@pytest.mark.parametrize("journey", JOURNEYS, ids=lambda journey: journey.__name__)
def test_a_journey_ends_well_on_aws(journey: Callable[[Ground], None], ministack_url: str) -> None:
    with ground(f"aws://us-east-1?endpoint_url={ministack_url}") as here:
        journey(here)
