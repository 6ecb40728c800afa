"""A journal shared by processes, one of which is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from postroad.journal.maintenance import verify
from postroad.journal.port import every_event
from postroad.wiring import connect

APPENDING = """
import sys
from postroad.journal import JournalEvent
from postroad.wiring import connect

with connect(sys.argv[1]) as backend:
    for n in range(100_000):
        task = f"{sys.argv[2]}-{n // 3}"
        kinds = [("Task Pending", {"name": "scrape"}), ("Task Interrupted", {"reason": "stop"})]
        events = [
            JournalEvent.create(kind, tenant_id="acme", entity_id=task, properties={"requestId": task, **properties})
            for kind, properties in kinds
        ]
        assert all(result.ok for result in backend.journal().append(events))
        print(*[event.event_id for event in events], flush=True)
"""


def appending(url: str, name: str) -> subprocess.Popen[str]:
    """A process that appends and says what was stored."""
    return subprocess.Popen([sys.executable, "-c", APPENDING, url, name], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_what_append_confirmed_survives_a_killed_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/postroad.db"
    connect(url).close()
    processes = [appending(url, name) for name in ("a", "b")]
    confirmed: list[str] = []
    for process in processes:
        assert process.stdout is not None
        confirmed += [event_id for _ in range(40) for event_id in process.stdout.readline().split()]

    for process in processes:
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        # The last line may have been cut off in the middle.
        confirmed += [event_id for line in rest.splitlines(keepends=True)[:-1] for event_id in line.split()]

    with connect(url) as backend:
        found = [str(event.event_id) for event in every_event(backend.journal(), "PK", tenant="acme")]
        assert set(confirmed) <= set(found)
        assert len(found) == len(set(found))
        assert verify(backend.journal(), "acme").differences == []
