"""The reconciler: it sends runs that were recorded as pending and never sent, and deletes what ended long ago.

It works in small steps: leases are deleted thirty days after their runs ended, events after `EVENTS_TTL_DAYS`. On the
way through the leases it records the `Task Pending` that an interrupted submission left owed, and so sends its run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from postroad.arguments import check
from postroad.blobs import Blobs
from postroad.errors import ConfigurationError, InvalidInput, OverflowMismatch, PostroadError
from postroad.items import ABSENT, Items
from postroad.journal import PENDING, Expiry, Journal, JournalEvent, Overflow, every_event, task_state
from postroad.ports import Store
from postroad.tasks.leases import LEASES, Held, Lease, TaskRecords, decode_lease, lease_key
from postroad.tasks.messages import EventFactory, log_event, tenant_and_app
from postroad.tasks.registry import Lifetime
from postroad.tasks.submissions import DELAYS, MAX_PUT_OFF, Submission, Submissions, message_of

KEPT_SECONDS = 30 * 86_400
_AT_ONCE = 200


class LeaseRound:
    """Looks at the leases of a tenant, round after round.

    It deletes those whose runs ended thirty days ago, and records what interrupted submissions owe to the journal.
    """

    def __init__(self, items: Items, blobs: Blobs | None, records: TaskRecords, tenant: str) -> None:
        self._items = items
        self._blobs = blobs
        self._records = records
        self._prefix = lease_key(tenant, "")
        self.cursor: str | None = None
        """The position of a round that is under way; None between two rounds."""

    def step(self, now_ms: int) -> int:
        """Examine the next few leases; return how many were deleted."""
        page = self._items.scan(self._prefix, limit=_AT_ONCE, cursor=self.cursor)
        forgotten = 0
        for item in page.items:
            lease = decode_lease(item.value)
            if lease.is_unsent and lease.owes:
                self._records.record_owed(Held(lease, item.version))
            elif lease.outcome is not None and lease.outcome.at < now_ms - KEPT_SECONDS * 1_000:
                # The lease of a run that began again meanwhile has another version, and stays.
                forgotten += self._items.delete(item.key, expect=item.version).ok
        self.cursor = page.cursor
        if page.cursor is None and self._blobs is not None:
            self._blobs.prune(LEASES, older_than=KEPT_SECONDS)
            self._blobs.prune(DELAYS, older_than=MAX_PUT_OFF + KEPT_SECONDS)
        return forgotten


# Events may arrive an hour late; an earlier look has seen what is older.
_LATE_MS = 3_900_000
# How far the watermark may lag: it is written once in so many milliseconds, not at each look.
_MARK_EVERY_MS = 600_000
_FORGET_EVERY_MS = 600_000
# So many failures in a row are not the fault of single events.
_MOST_FAILURES = 3


class ReconcilerLease:
    """Lets one worker of a tenant reconcile at a time, where each look costs requests.

    Its holder renews it with each look; after the holder's death another worker takes it when it expires. Two holders
    at the same time do no harm.
    """

    def __init__(self, backend: Store, *, tenant: str, queue: str, seconds: float) -> None:
        self._items: Items = backend.items()
        self._clock = backend.clock
        self._key = f"{tenant}/RECONCILER#{queue}"
        self._me = uuid.uuid4().hex
        self._seconds = seconds
        self._version: int | None = None

    def hold(self) -> bool:
        """Take or renew the lease; return False while another worker has it."""
        now = self._clock.now().timestamp()
        value = msgspec.json.encode({"owner": self._me, "until": now + self._seconds})
        written = self._items.put(self._key, value, expect=ABSENT if self._version is None else self._version)
        if not written.ok and written.item is not None:
            known = msgspec.json.decode(written.item.value)
            if known["owner"] == self._me or known["until"] <= now:
                written = self._items.put(self._key, value, expect=written.item.version)
        self._version = written.item.version if written.ok and written.item is not None else None
        return written.ok

    def give_up(self) -> None:
        """Let another worker take it at once."""
        if self._version is not None:
            with suppress(PostroadError):
                self._items.delete(self._key, expect=self._version)


class Reconciler:
    """Sends runs that are pending and were not sent. Several may run at once: a second message does no harm.

    Args:
        backend: The store, as `connect()` returns it.
        queue: The name of the tasks queue; on AWS without the stage.
        tenant_id: The tenant whose tasks are examined; by default that of the settings.
        app: The app of the recorded events; by default that of the settings.
        stale_after: Seconds that a run may be pending before it is sent again; 60 by default. It must be longer than a
            submission takes.

    Raises:
        ConfigurationError: `stale_after` is out of its bounds.
        QueueNotFound: The queue does not exist on AWS; create it with `postroad task init`.

    Example:
        Reconciler(backend).run_once()
    """

    def __init__(
        self,
        backend: Store,
        *,
        queue: str = "tasks",
        tenant_id: str | None = None,
        app: str | None = None,
        stale_after: float = 60.0,
    ) -> None:
        check(stale_after, Lifetime, "stale_after", ConfigurationError)
        self._tenant, app = tenant_and_app(tenant_id, app)
        self._clock = backend.clock
        self._queue_name = queue
        self._mark = f"{self._tenant}/RECONCILED#TASK#{queue}"
        self._stale_ms = int(stale_after * 1_000)
        self._journal: Journal = backend.journal()
        self._items: Items = backend.items()
        self._records = TaskRecords(backend)
        self._submissions = Submissions(backend, self._records, queue_name=queue)
        self._submissions.open_queue()
        self._overflow = Overflow(backend.blobs())
        self._factory = EventFactory(app=app, environment=backend.stage, origin="dispatcher", clock=backend.clock)
        self._leases = LeaseRound(self._items, backend.blobs(), self._records, self._tenant)
        self._expiry = Expiry(self._journal, self._tenant)
        self._seen: set[tuple[str, int]] = set()
        self._marked: int | None = None
        self._forgot_at = 0

    def run_once(self) -> int:
        """Send every run that has been pending too long without a message; return how many were sent.

        A run that can never be sent fails. Any other error is raised after the other runs were handled, and its run is
        examined again the next time.
        """
        now = int(self._clock.now().timestamp() * 1_000)
        seen, sent = set[tuple[str, int]](), 0
        errors, in_a_row = list[Exception](), 0
        for pending in self._pending(until=now - self._stale_ms):
            place = (pending.entity_id, pending.properties.get("run", 1))
            try:
                sent += place not in self._seen and self._resend(pending)
            except Exception as error:
                errors, in_a_row = [*errors, error], in_a_row + 1
                if in_a_row == _MOST_FAILURES:
                    break
            else:
                seen.add(place)
                in_a_row = 0
        self._seen = seen
        if errors:
            raise errors[0]
        watermark = now - self._stale_ms - _LATE_MS
        if self._marked is None or watermark - self._marked >= _MARK_EVERY_MS:
            self._items.put(self._mark, msgspec.json.encode(watermark))
            self._marked = watermark
        if now - self._forgot_at >= _FORGET_EVERY_MS or self._leases.cursor is not None:
            self._leases.step(now)
            self._forgot_at = now
        self._expiry.step(now)
        return sent

    def _resend(self, pending: JournalEvent) -> bool:
        held = self._records.read(self._tenant, pending.entity_id)
        if not self._waits(pending, held):
            return False
        try:
            message = message_of(self._overflow.unpack(pending))
            submission = Submission(tenant=self._tenant, message=message, pending=pending, app=pending.app)
            self._submissions.resend(submission, held)
        except (InvalidInput, OverflowMismatch) as error:
            self._fail(pending, held, f"the task cannot be sent: {error}")
            return False
        log_event("task_resent", request_id=message.request_id, run=message.run)
        return True

    def _fail(self, pending: JournalEvent, held: Held | None, error: str) -> None:
        """Fail a run that no worker could ever read."""
        request_id, known = pending.entity_id, pending.properties
        first = Lease(
            run=known.get("run", 1), queue=self._queue_name, job_id=known.get("jobId"), task_id=known.get("taskId")
        )
        lease = first if held is None else held.lease
        if self._records.refuse(first.task(self._tenant, request_id), self._factory, error, lease=lease, expect=held):
            log_event("task_refused", request_id=request_id, error=error)

    def _waits(self, pending: JournalEvent, held: Held | None) -> bool:
        """Return whether the run is still pending in this queue, and its message was not sent."""
        run = pending.properties.get("run", 1)
        if held is not None:
            lease = held.lease
            if lease.run != run or lease.outcome is not None or lease.sent_at is not None:
                return False
            if lease.due_at is not None:
                # It was put off; the scheduler sends it when it is due.
                return False
            if lease.queue and lease.queue != self._queue_name:
                return False
        state = task_state(self._journal, self._tenant, pending.entity_id, raw=True)
        return state is not None and state.state == "pending" and state.run == run

    def _pending(self, *, until: int) -> Iterator[JournalEvent]:
        """Return each `Task Pending` after the watermark, up to which earlier looks have seen everything."""
        if self._marked is None and (item := self._items.get(self._mark)) is not None:
            self._marked = msgspec.json.decode(item.value, type=int)
        return every_event(
            self._journal, "GSI4", tenant=self._tenant, event_type=PENDING, start=self._marked, end=until, raw=True
        )
