"""The reconciler: sends what was recorded as pending and never sent, and forgets what ended long ago.

It walks in small steps: leases thirty days after their runs ended, events after `EVENTS_TTL_DAYS`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from postroad.arguments import check
from postroad.blobs import Blobs
from postroad.errors import ConfigurationError, InvalidInput, OverflowMismatch, PostroadError
from postroad.items import ABSENT, Item, Items
from postroad.journal import FAILED, PENDING, Expiry, Journal, JournalEvent, Overflow, task_state
from postroad.ports import Store
from postroad.queues import legible
from postroad.tasks.config import Lifetime
from postroad.tasks.leases import Held, Lease, leases_of
from postroad.tasks.log import tell
from postroad.tasks.queues import tenant_and_app
from postroad.tasks.records import LEASES, EventFactory, TaskId, TaskRecords, decode_lease
from postroad.tasks.submissions import Submission, Submissions, message_of

KEPT_SECONDS = 30 * 86_400
_AT_ONCE = 200


class LeaseExpiry:
    """Walks through the leases of a tenant, round after round, and removes those that ended thirty days ago."""

    def __init__(self, items: Items, blobs: Blobs | None, tenant: str) -> None:
        self._items = items
        self._blobs = blobs
        self._prefix = leases_of(tenant)
        self._cursor: str | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a round has begun and not ended."""
        return self._cursor is not None

    def step(self, now_ms: int) -> int:
        """Look at the next few; how many were forgotten."""
        page = self._items.scan(self._prefix, limit=_AT_ONCE, cursor=self._cursor)
        forgotten = sum(self._forget(item, now_ms - KEPT_SECONDS * 1_000) for item in page.items)
        self._cursor = page.cursor
        if page.cursor is None and self._blobs is not None:
            self._blobs.prune(LEASES, older_than=KEPT_SECONDS)
        return forgotten

    def _forget(self, item: Item, before_ms: int) -> bool:
        outcome = decode_lease(item.value).outcome
        if outcome is None or outcome.at >= before_ms:
            return False
        # A run that began again meanwhile has another version, and stays.
        return self._items.delete(item.key, expect=item.version).ok


# Events may come an hour late; what is older than that was seen by an earlier look.
_LATE_MS = 3_900_000
# How far behind its end the watermark may be: it is written once in so many milliseconds, and not at each look.
_MARK_EVERY_MS = 600_000
_FORGET_EVERY_MS = 600_000
_PAGE = 500
# So many failures in a row are not the fault of one event.
_MOST_FAILURES = 3


class ReconcilerLease:
    """Lets one worker of a tenant reconcile at a time, where each look costs requests.

    Whoever holds it renews it with each look; one that died is followed by another when its time is over. Two that hold
    it for a moment do no harm.
    """

    def __init__(self, backend: Store, *, tenant: str, queue: str, seconds: float) -> None:
        self._items: Items = backend.items()
        self._clock = backend.clock
        self._key = f"{tenant}/RECONCILER#{queue}"
        self._me = uuid.uuid4().hex
        self._seconds = seconds
        self._version: int | None = None

    def hold(self) -> bool:
        """Take or renew the lease; False while another worker has it."""
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
    """Looks for runs that wait and were not sent. Any number may look at once: a second message is harmless."""

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
        who = tenant_and_app(tenant_id, app)
        self._tenant = who.tenant_id
        self._clock = backend.clock
        self._queue_name = queue
        self._stale_ms = int(stale_after * 1_000)
        self._journal: Journal = backend.journal()
        self._items: Items = backend.items()
        self._records = TaskRecords(backend)
        self._submissions = Submissions(backend, self._records, queue_name=queue)
        self._submissions.open_queue()
        self._overflow = Overflow(backend.blobs())
        self._factory = EventFactory(app=who.app, environment=backend.stage, origin="dispatcher", clock=backend.clock)
        self._lease_expiry = LeaseExpiry(self._items, backend.blobs(), self._tenant)
        self._expiry = Expiry(self._journal, self._tenant)
        self._seen: set[tuple[str, int]] = set()
        self._marked: int | None = None
        self._forgot_at = 0

    def run_once(self) -> int:
        """Send every run that has waited too long without a message, and return how many were sent.

        Each run is handled on its own. One that can never be sent fails. Any other error is raised when the others
        have been handled, and its run is looked at again.
        """
        now = int(self._clock.now().timestamp() * 1_000)
        seen, sent = set[tuple[str, int]](), 0
        errors, in_a_row = list[Exception](), 0
        for pending in self._pending(since=self._watermark(), until=now - self._stale_ms):
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
        self._set_watermark(now - self._stale_ms - _LATE_MS)
        if now - self._forgot_at >= _FORGET_EVERY_MS or self._lease_expiry.is_under_way:
            self._lease_expiry.step(now)
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
        tell("task_resent", request_id=message.request_id, run=message.run)
        return True

    def _fail(self, pending: JournalEvent, held: Held | None, error: str) -> None:
        """End a run that no worker could ever read."""
        request_id, told = pending.entity_id, pending.properties
        task = TaskId(
            tenant_id=self._tenant,
            request_id=request_id,
            run=told.get("run", 1),
            job_id=told.get("jobId"),
            task_id=told.get("taskId"),
        )
        event = self._factory.event(
            FAILED, task, error=legible(error), errorCategory="validation", retryCount=0, source="worker"
        )
        lease = Lease(run=task.run, queue=self._queue_name, job_id=task.job_id, task_id=task.task_id)
        settled = (lease if held is None else held.lease).settled(event)
        if self._records.write(self._tenant, request_id, settled, [event], expect=held).ok:
            tell("task_refused", request_id=request_id, error=error)

    def _waits(self, pending: JournalEvent, held: Held | None) -> bool:
        """Whether the run is still pending, of this queue, and its message was not sent."""
        run = pending.properties.get("run", 1)
        if held is not None:
            lease = held.lease
            if lease.run != run or lease.outcome is not None or lease.sent_at is not None:
                return False
            if lease.queue and lease.queue != self._queue_name:
                return False
        state = task_state(self._journal, self._tenant, pending.entity_id, raw=True)
        return state is not None and state.state == "pending" and state.run == run

    def _pending(self, *, since: int | None, until: int) -> Iterator[JournalEvent]:
        cursor: str | None = None
        while True:
            page = self._journal.query(
                "GSI4",
                tenant=self._tenant,
                event_type=PENDING,
                start=since,
                end=until,
                limit=_PAGE,
                cursor=cursor,
                raw=True,
            )
            yield from page.events
            cursor = page.cursor
            if cursor is None:
                return

    @property
    def _mark(self) -> str:
        return f"{self._tenant}/RECONCILED#TASK#{self._queue_name}"

    def _watermark(self) -> int | None:
        """Up to when everything was looked at before; None at the first look."""
        if self._marked is None:
            item = self._items.get(self._mark)
            self._marked = None if item is None else msgspec.json.decode(item.value, type=int)
        return self._marked

    def _set_watermark(self, moment: int) -> None:
        if self._marked is None or moment - self._marked >= _MARK_EVERY_MS:
            self._items.put(self._mark, msgspec.json.encode(moment))
            self._marked = moment
