"""What holds for operations when nothing is said."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from postroad.operations import CostEstimate, FailureGroup, RedriveReport, estimate_cost, redrive
from postroad.queues.redrive import Bounds

BOUNDS = {"limit": None, "rate": None, "canary": 0, "canary_wait": 60.0, "stop_after": 5, "max_redrives": 3}
DEFAULTS: dict[Callable[..., Any], dict[str, Any]] = {
    redrive: BOUNDS | {"to": None, "match": None, "dry_run": False, "native": None, "reason": "", "actor": None},
    Bounds: BOUNDS,
    estimate_cost: {
        "send_batch": 1,
        "receive_batch": 10,
        "delete_batch": 10,
        "body_bytes": 1_024,
        "pollers": 0,
        "poll_wait": 20,
        "fifo": False,
        "transfer_gb": 0.0,
        "days": 30,
    },
}


@pytest.mark.parametrize("called", DEFAULTS, ids=lambda called: called.__qualname__)
def test_what_is_not_said_has_its_default(called: Callable[..., Any]) -> None:
    given = {name: each.default for name, each in inspect.signature(called).parameters.items()}

    assert {name: given[name] for name in DEFAULTS[called]} == DEFAULTS[called]


def test_results_have_the_fields_that_others_read() -> None:
    assert RedriveReport.__struct_fields__ == (
        "run_id",
        "status",
        "matched",
        "moved",
        "returned",
        "skipped",
        "destinations",
        "task_handle",
    )
    assert [each.name for each in fields(FailureGroup)] == [
        "fingerprint",
        "event_type",
        "error",
        "count",
        "first_sent_at",
        "last_sent_at",
        "sample_ids",
    ]
    assert [each.name for each in fields(CostEstimate)] == [
        "requests_per_message",
        "requests",
        "billable_requests",
        "request_usd",
        "transfer_usd",
        "monthly_usd",
    ]
