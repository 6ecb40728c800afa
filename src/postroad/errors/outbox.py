"""What the outbox and the inbox refuse."""

from __future__ import annotations

from postroad.errors.root import PostroadError
from postroad.errors.transport import RowRejected, Unavailable


class NotInTransaction(PostroadError):
    """The connection would commit by itself, so that the row and the caller's own change could part."""

    slug = "not-in-transaction"
    status = 409
    remedy = "Begin a transaction first, on the connection that makes the change; nothing was written."


class DuplicateEvent(PostroadError):
    """An event of this id is in the outbox already."""

    slug = "duplicate-event"
    status = 409
    remedy = "Nothing was added and the transaction goes on; leave it, or give the event an id of its own."


class DeadlockDetected(Unavailable):
    """Two transactions that record events of several keys in different orders waited for each other; this one lost."""

    slug = "deadlock-detected"
    status = 409
    remedy = (
        "Roll back and run the transaction again. To avoid it, record all of its events with one `add_many`, which "
        "takes the keys in a fixed order, or call `add` in the sorted order of the keys."
    )


class NotRedrivable(PostroadError):
    """Only what is FAILED or PARKED can be redriven or skipped."""

    slug = "not-redrivable"
    status = 409
    remedy = "`postroad outbox why EVENT_ID` says what the event waits for; nothing was changed."


class Undecryptable(RowRejected):
    """A payload that was encrypted for another row, or with a key that is not at hand."""

    slug = "undecryptable"
    remedy = "Give the dispatcher the key file that holds this key id, then redrive the row."
