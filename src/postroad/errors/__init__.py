"""Every error Postroad raises, in one tree.

    PostroadError
    ├── ConfigurationError        a URL, setting or specification that cannot work
    │   ├── AlertRefused          an address that no alert may be sent to
    │   ├── AmbiguousSource       nothing tells where a dead letter goes back to
    │   ├── SchemaMismatch        a file made by another version of Postroad
    │   └── TopologyError         a topology that cannot work (lists what lint found)
    ├── InvalidInput              an argument that is refused before anything changes
    │   ├── InvalidName
    │   ├── InvalidMessage        (names the field at fault)
    │   │   ├── InvalidNotification   a push or an offline message
    │   │   └── MessageTooLarge
    │   ├── InvalidEvent          (names the field at fault)
    │   │   └── EventTooLarge
    │   ├── InvalidQuery          a question that the journal cannot answer
    │   ├── InvalidJob            a graph of tasks that cannot be run
    │   ├── InvalidTask           (names the field at fault)
    │   ├── UnknownTask           a name that no registry of tasks knows
    │   ├── InvalidSnapshot       a text that holds no session's state
    │   ├── InvalidCursor
    │   ├── TokenInUrl
    │   ├── HostNotAllowed
    │   ├── BodyTooLarge
    │   └── NotJSON
    ├── UnknownEventType          a name that no registry knows
    ├── RemoteError               an exception of another process whose class is not known here
    ├── AgentDeleted              an id that is never given again
    ├── ConsentRequired           the producer has not granted it
    ├── IdentityMismatch          the body names another agent than the token
    ├── Conflict                  it exists, and is not what this needs
    │   ├── AgentExists
    │   ├── QueueExists           (names the differences)
    │   └── TokenExists
    ├── NotFound                  there is nothing of this name or id
    │   ├── AgentNotFound
    │   ├── BlobNotFound
    │   ├── QueueNotFound
    │   ├── RouteNotFound
    │   ├── StreamNotFound
    │   ├── SubscriptionNotFound
    │   ├── TokenNotFound
    │   └── TopicNotFound
    ├── TopologyConflict          what exists cannot become what is declared
    ├── PlanChanged               not the plan that was agreed to
    ├── RedriveRunning            the store moves this queue's messages already
    ├── PurgeRunning              the store is not done with the purge before
    ├── NotSupported              this adapter cannot do it; its traits say so
    ├── StaleReceipt              the lease is no longer yours
    ├── RequestFailed             a main loop answered with an error; it is the cause
    ├── RequestTimeout            no main loop answered in time (a TimeoutError too)
    ├── DeadlineExceeded          a request whose time was over before it began
    ├── HeldBack                  not sent, because an earlier one of its key failed
    ├── Unauthorized              no token, or one that opens nothing
    ├── Forbidden                 known, but not allowed to do this
    │   └── ReadOnly
    ├── MethodNotAllowed
    ├── BodyTooSlow
    ├── IdempotencyKeyReused      the key came before, with another body
    ├── RateLimited               too much at once; says when to come again
    │   └── TooManyPolls
    ├── InternalError             nothing Postroad foresaw
    ├── StorageFull
    ├── StorageDamaged            what was read is not what was written
    │   └── OverflowMismatch      (of a blob with part of an event)
    ├── TransportError            the driver or the network failed
    │   ├── Unavailable           it surely had no effect
    │   │   ├── NotPermitted      the credentials do not allow it
    │   │   ├── Throttled         too much at this rate
    │   │   ├── DeadlockDetected  two transactions waited for each other; this one lost
    │   │   └── CircuitOpenError  not tried, because too much failed before
    │   ├── SendFailed            a queue did not take a message
    │   ├── OutcomeUnknown        it may have had its effect; repeat it under the same id
    │   └── PublishFailed         a bus could not send an event
    │       ├── OutOfOrder        a later one of its group is already sent
    │       └── NotSent           an earlier one of its group failed
    ├── NotInTransaction          the connection would commit by itself
    ├── DuplicateEvent            an event of this id is in the outbox already
    ├── NotRedrivable             neither FAILED nor PARKED
    ├── DuplicateInProgress       another copy of the event is being handled
    └── PublishError
        ├── RowRejected           this message can never be published
        │   └── Undecryptable     encrypted for another row, or with a key that is not at hand
        └── TargetUnavailable     the target is at fault, not the message

Each class carries the `slug`, `status` and `remedy` that the CLI, the HTTP API and the documentation share.
"""

from postroad.errors.root import (
    AmbiguousSource,
    ConfigurationError,
    Conflict,
    InvalidInput,
    InvalidMessage,
    InvalidName,
    InvalidSnapshot,
    MessageTooLarge,
    NotFound,
    PostroadError,
    RemoteError,
    SchemaMismatch,
    UnknownEventType,
    describe as describe,
    without_credentials as without_credentials,
)
from postroad.errors.stores import (
    BlobNotFound,
    DeadlockDetected,
    DuplicateEvent,
    HeldBack,
    NotInTransaction,
    NotRedrivable,
    NotSupported,
    PlanChanged,
    PurgeRunning,
    QueueExists,
    QueueNotFound,
    RedriveRunning,
    StaleReceipt,
    StorageDamaged,
    StorageFull,
    StreamNotFound,
    TopicNotFound,
    TopologyConflict,
    TopologyError,
    Undecryptable,
)
from postroad.errors.transport import (
    CircuitOpenError,
    DuplicateInProgress,
    NotPermitted,
    NotSent,
    OutcomeUnknown,
    OutOfOrder,
    PublishError,
    PublishFailed,
    RowRejected,
    TargetUnavailable,
    Throttled,
    TransportError,
    Unavailable,
)
from postroad.errors.web import (
    BodyTooLarge,
    BodyTooSlow,
    Forbidden,
    HostNotAllowed,
    IdempotencyKeyReused,
    InternalError,
    InvalidCursor,
    MethodNotAllowed,
    NotJSON,
    RateLimited,
    ReadOnly,
    RouteNotFound,
    TokenExists,
    TokenInUrl,
    TokenNotFound,
    TooManyPolls,
    Unauthorized,
)
from postroad.errors.work import (
    AgentDeleted,
    AgentExists,
    AgentNotFound,
    AlertRefused,
    ConsentRequired,
    DeadlineExceeded,
    EventTooLarge,
    IdentityMismatch,
    InvalidEvent,
    InvalidJob,
    InvalidNotification,
    InvalidQuery,
    InvalidTask,
    OverflowMismatch,
    RequestFailed,
    RequestTimeout,
    SendFailed,
    SubscriptionNotFound,
    UnknownTask,
)

__all__ = [
    "AgentDeleted",
    "AgentExists",
    "AgentNotFound",
    "AlertRefused",
    "AmbiguousSource",
    "BlobNotFound",
    "BodyTooLarge",
    "BodyTooSlow",
    "CircuitOpenError",
    "ConfigurationError",
    "Conflict",
    "ConsentRequired",
    "DeadlineExceeded",
    "DeadlockDetected",
    "DuplicateEvent",
    "DuplicateInProgress",
    "EventTooLarge",
    "Forbidden",
    "HeldBack",
    "HostNotAllowed",
    "IdempotencyKeyReused",
    "IdentityMismatch",
    "InternalError",
    "InvalidCursor",
    "InvalidEvent",
    "InvalidInput",
    "InvalidJob",
    "InvalidMessage",
    "InvalidName",
    "InvalidNotification",
    "InvalidQuery",
    "InvalidSnapshot",
    "InvalidTask",
    "MessageTooLarge",
    "MethodNotAllowed",
    "NotFound",
    "NotInTransaction",
    "NotJSON",
    "NotPermitted",
    "NotRedrivable",
    "NotSent",
    "NotSupported",
    "OutOfOrder",
    "OutcomeUnknown",
    "OverflowMismatch",
    "PlanChanged",
    "PostroadError",
    "PublishError",
    "PublishFailed",
    "PurgeRunning",
    "QueueExists",
    "QueueNotFound",
    "RateLimited",
    "ReadOnly",
    "RedriveRunning",
    "RemoteError",
    "RequestFailed",
    "RequestTimeout",
    "RouteNotFound",
    "RowRejected",
    "SchemaMismatch",
    "SendFailed",
    "StaleReceipt",
    "StorageDamaged",
    "StorageFull",
    "StreamNotFound",
    "SubscriptionNotFound",
    "TargetUnavailable",
    "Throttled",
    "TokenExists",
    "TokenInUrl",
    "TokenNotFound",
    "TooManyPolls",
    "TopicNotFound",
    "TopologyConflict",
    "TopologyError",
    "TransportError",
    "Unauthorized",
    "Unavailable",
    "Undecryptable",
    "UnknownEventType",
    "UnknownTask",
]

# One place to import from is one name in messages, tracebacks and documents: `postroad.errors:QueueNotFound`.
for _name in __all__:
    globals()[_name].__module__ = __name__
