"""Tasks with a delay that is longer than a queue's: they wait as items and are sent when they are due."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import cache

import msgspec

from postroad import failpoints
from postroad.backoff import Backoff
from postroad.blobs import BlobRef
from postroad.errors import BlobNotFound, StorageDamaged
from postroad.items import Item, Items
from postroad.ports import Store
from postroad.tasks.leases import Held, TaskRecords
from postroad.tasks.messages import EventFactory, TaskMessage, log_event, scan
from postroad.tasks.submissions import PutOff, Submission, Submissions, put_off_key

MOST_FAILURES = 3
"""So many failures in a row are not the fault of single items."""
_PAGE = 50
# A delay is longer than a queue's when it is put off, so a look now and then finds each in time.
_LOOK_SECONDS = 300.0
_RETRY_SECONDS = 1.0
# So long after its time, an item that no lease names belongs to a submission that died.
_ORPHAN_SECONDS = 3_600
_decode_put_off = msgspec.json.Decoder(PutOff).decode
_decode_message = msgspec.json.Decoder(TaskMessage).decode


class Retries:
    """What failed: each is tried again after a pause of its own, which grows, so that it holds up no other."""

    def __init__(self) -> None:
        self._backoffs: dict[str, Backoff] = {}
        self._not_before: dict[str, float] = {}
        self.in_a_row = 0
        """The failures since the last success; the owner begins anew with each look."""

    def may_try(self, name: str) -> bool:
        """Return whether its pause is over."""
        return not self._not_before or self._not_before.get(name, 0.0) <= time.monotonic()

    def wait(self, name: str, seconds: float) -> None:
        """Leave it alone for so long."""
        self._not_before[name] = time.monotonic() + seconds

    def failed(self, name: str) -> bool:
        """Let it pause; return whether this is its first failure in a row."""
        self.in_a_row += 1
        backoff = self._backoffs.setdefault(name, Backoff())
        self.wait(name, backoff.next())
        return backoff.failures == 1

    def succeeded(self, names: Iterable[str]) -> None:
        """Forget the failures of these."""
        self.in_a_row = 0
        for name in names if self._backoffs else ():
            self._backoffs.pop(name, None)


class DelayedTasks:
    """Sends tasks that were put off when they are due.

    Where a look costs requests, it sends them up to `look_ahead` seconds before, with the rest as the delay of the
    message.
    """

    def __init__(self, backend: Store, tenant: str, app: str, *, look_ahead: float) -> None:
        self._backend = backend
        self._tenant = tenant
        self._look_ahead = look_ahead
        self._items: Items = backend.items()
        self._records = TaskRecords(backend)
        self._factory = EventFactory(app=app, environment=backend.stage, origin="dispatcher", clock=backend.clock)
        self._prefix = put_off_key(tenant)
        self._submissions = cache(lambda queue: Submissions(backend, self._records, queue_name=queue))
        self._retries = Retries()
        self._look_at = 0.0

    def send(self, now: datetime, errors: list[Exception], *, at_once: bool) -> int:
        """Send what is due and return how many were sent; errors are added to `errors`.

        Without `at_once`, it looks only when something may be due, and leaves out what failed a moment ago.
        """
        moment = now.timestamp()
        # A time that lies further ahead was set before the clock was set back.
        if not at_once and moment < self._look_at <= moment + _LOOK_SECONDS:
            return 0
        self._look_at = moment + _LOOK_SECONDS
        self._retries.in_a_row = 0
        sent, failed, due = 0, len(errors), list[Item]()
        for item in scan(self._items, self._prefix, limit=_PAGE):
            due_at = self._due_at(item)
            if due_at > moment + self._look_ahead:
                self._look_at = min(self._look_at, due_at - self._look_ahead)
                break
            if at_once or self._retries.may_try(item.key):
                due.append(item)
            else:
                self._look_at = min(self._look_at, moment + _RETRY_SECONDS)
            if len(due) >= (_PAGE if self._backend.joins_writes else 1):
                sent += self._send_together(due, moment, errors)
                due = []
            if self._retries.in_a_row >= MOST_FAILURES:
                break
        sent += self._send_together(due, moment, errors)
        if len(errors) > failed:
            self._look_at = min(self._look_at, moment + _RETRY_SECONDS)
        return sent

    def _send_together(self, items: Sequence[Item], moment: float, errors: list[Exception]) -> int:
        """Send these, in one commit where there is one; after an error each on its own. Return how many were sent."""
        try:
            with self._backend.transaction() if self._backend.joins_writes else nullcontext():
                results = [self._send_one(item, moment) for item in items]
        except Exception as error:
            if len(items) > 1:
                return sum(
                    self._send_together([item], moment, errors)
                    for item in items
                    if self._retries.in_a_row < MOST_FAILURES
                )
            if self._retries.failed(items[0].key):
                log_event("task_put_off_failed", item=items[0].key, error=error)
            errors.append(error)
            return 0
        self._retries.succeeded(item.key for item in items)
        for _, blob in results:
            if blob is not None and (blobs := self._backend.blobs()) is not None:
                blobs.delete(blob)
        return sum(sent for sent, _ in results)

    def _due_at(self, item: Item) -> float:
        """Return when it is due, in seconds since 1970."""
        return int(item.key.removeprefix(self._prefix).partition("#")[0]) / 1_000

    def _send_one(self, item: Item, moment: float) -> tuple[bool, BlobRef | None]:
        """Send it and delete the item; one that is not to be sent is deleted, too, once that is sure.

        Return whether it was sent, and the blob that is not needed any more.
        """
        request_id = item.key.removeprefix(self._prefix).partition("#")[2]
        due_at = self._due_at(item)
        held = self._records.read(self._tenant, request_id)
        is_open = held is None or (held.lease.sent_at is None and held.lease.outcome is None)
        is_ours = held is not None and held.lease.due_at == round(due_at * 1_000)
        if is_open and not is_ours and moment < due_at + _ORPHAN_SECONDS:
            # Its submission may be about to write the lease, or it died and another one took its place.
            return False, None
        waits = _decode_put_off(item.value)
        if held is not None and is_open and is_ours:
            self._send(waits, held, request_id, delay=max(0.0, due_at - moment))
        failpoints.hit("scheduler.after_send")
        self._items.delete(item.key, expect=item.version)
        return is_open and is_ours, waits.blob

    def _send(self, waits: PutOff, held: Held, request_id: str, *, delay: float) -> None:
        message = self._message(waits)
        if message is None:
            task, error = held.lease.task(self._tenant, request_id), "its input is gone from the blobs"
            if self._records.refuse(task, self._factory, error, lease=held.lease, expect=held):
                log_event("task_refused", request_id=request_id, error="its blob is gone")
            return
        self._submissions(waits.queue).resend(Submission.of(message, self._tenant, self._factory, delay=delay), held)

    def _message(self, waits: PutOff) -> TaskMessage | None:
        """Return the message; None if its blob is gone."""
        if waits.blob is None:
            return waits.message
        blobs = self._backend.blobs()
        try:
            return None if blobs is None else _decode_message(blobs.get(waits.blob))
        except (BlobNotFound, StorageDamaged):
            return None
