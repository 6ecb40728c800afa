"""Every error Postroad raises, in one tree.

    PostroadError
    ├── ConfigurationError        a URL, setting or specification that cannot work
    │   ├── AlertRefused          an address that no alert may be sent to
    │   ├── AmbiguousSource       the queue that a dead letter came from is not known
    │   ├── SchemaMismatch        a file made by another version of Postroad
    │   └── TopologyError         a topology that cannot work (lists what lint found)
    ├── InvalidInput              an argument that is refused before anything changes
    │   ├── InvalidName
    │   ├── InvalidMessage        (names the field at fault)
    │   │   ├── InvalidNotification   a push or an offline message
    │   │   └── MessageTooLarge
    │   ├── InvalidEvent          (names the field at fault)
    │   │   └── EventTooLarge
    │   ├── InvalidQuery          a query that the journal cannot answer
    │   ├── InvalidJob            a graph of tasks that cannot be run
    │   ├── InvalidTask           (names the field at fault)
    │   ├── UnknownTask           a name that no registry of tasks knows
    │   ├── InvalidSnapshot       text that is not the snapshot of a session
    │   ├── InvalidCursor
    │   ├── TokenInUrl
    │   ├── HostNotAllowed
    │   ├── BodyTooLarge
    │   ├── HeadersTooLarge
    │   └── NotJSON
    ├── UnknownEventType          a name that no registry knows
    ├── RemoteError               an exception of another process, of an unknown class
    ├── AgentDeleted              ids are never reused
    ├── ConsentRequired           the producer has not granted it
    ├── IdentityMismatch          the body names a different agent than the token
    ├── Conflict                  it exists, with another state or content
    │   ├── AgentExists
    │   ├── QueueExists           (names the differences)
    │   └── TokenExists
    ├── NotFound                  nothing has this name or id
    │   ├── AgentNotFound
    │   ├── BlobNotFound
    │   ├── QueueNotFound
    │   ├── RouteNotFound
    │   ├── StreamNotFound
    │   ├── SubscriptionNotFound
    │   ├── TokenNotFound
    │   └── TopicNotFound
    ├── TopologyConflict          a change that would lose data
    ├── PlanChanged               the plan has changed since it was approved
    ├── RedriveRunning            the store is already moving this queue's messages
    ├── PurgeRunning              the store has not finished the previous purge
    ├── NotSupported              this adapter does not support it; its traits say so
    ├── StaleReceipt              the lease is no longer yours
    ├── TaskRunFailed             a task that somebody waits for failed (says why)
    ├── TaskRunCancelled          a task that somebody waits for was cancelled
    ├── RequestFailed             a main loop answered with an error; it is the cause
    ├── RequestTimeout            no main loop answered in time (a TimeoutError too)
    ├── DeadlineExceeded          a request whose deadline passed before the work began
    ├── HeldBack                  not sent, because an earlier message of its group failed
    ├── Unauthorized              no token, or one that is not valid
    ├── Forbidden                 the token's scope does not allow this
    │   ├── ForeignForm
    │   └── ReadOnly
    ├── MethodNotAllowed
    ├── BodyTooSlow
    ├── IdempotencyKeyReused      the key was used before with a different body
    ├── RateLimited               too many requests at once; says when to try again
    │   └── TooManyPolls
    ├── InternalError             an error that Postroad did not expect
    ├── StorageFull
    ├── StorageDamaged            what was read is not what was written
    │   └── OverflowMismatch      (of a blob with part of an event)
    ├── TransportError            the driver or the network failed
    │   ├── Unavailable           the call had no effect
    │   │   ├── NotPermitted      the credentials do not allow it
    │   │   ├── Throttled         too many calls
    │   │   ├── DeadlockDetected  two transactions waited for each other; this one lost
    │   │   └── CircuitOpenError  not tried, because too many earlier calls failed
    │   ├── SendFailed            a queue did not accept a message
    │   ├── OutcomeUnknown        it may have taken effect; repeat it with the same id
    │   └── PublishFailed         a bus could not send an event
    │       ├── OutOfOrder        a later event of its group was already sent
    │       └── NotSent           an earlier event of its group failed
    ├── NotInTransaction          the connection commits each statement
    ├── DuplicateEvent            the outbox already holds an event with this id
    ├── NotRedrivable             neither FAILED nor PARKED
    ├── DuplicateInProgress       another copy of the event is being handled
    └── PublishError
        ├── RowRejected           this message can never be published
        │   └── Undecryptable     encrypted for another row, or with an unknown key
        └── TargetUnavailable     the target is at fault, not the message

Each class carries the `slug`, `status` and `remedy` that the CLI, the HTTP API and the documentation share. The slug
is the name of the class: `QueueNotFound` is 'queue-not-found'. `Retryable` and `NonRetryable` are no part of the tree:
handlers and tasks raise them, Postroad does not.
"""

import re

from postroad.errors.retries import *  # noqa: F403
from postroad.errors.root import *  # noqa: F403
from postroad.errors.root import PostroadError
from postroad.errors.stores import *  # noqa: F403
from postroad.errors.work import *  # noqa: F403

__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]  # type checkers read the modules above
    name for name, each in globals().items() if isinstance(each, type) and issubclass(each, PostroadError)
)

_error: type[PostroadError] = PostroadError
for _name in __all__:
    _error = globals()[_name]
    # One place to import from is one name in messages, tracebacks and documents: `postroad.errors:QueueNotFound`.
    _error.__module__ = __name__
    if "slug" not in vars(_error):
        _error.slug = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", _name.removesuffix("Error")).lower()
del _error
