from __future__ import annotations

import msgspec

from postroad.jobs.graph import Job
from postroad.tasks.leases import Lease


def test_the_items_of_tasks_and_jobs_name_every_field_whatever_it_holds() -> None:
    lease = msgspec.json.decode(msgspec.json.encode(Lease()))
    job = msgspec.json.decode(msgspec.json.encode(Job(total=1, digest="d", queue="tasks", created_at=1)))

    assert {"owner", "effectiveUntil", "token", "attempts", "run", "sentAt", "outcome"} <= set(lease)
    assert {"status", "total"} <= set(job)
