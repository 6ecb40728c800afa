"""Sessions: state that follows events in every process; and main loops that answer requests over a bus."""

from postroad.errors import DeadlineExceeded, InvalidSnapshot, RequestFailed, RequestTimeout
from postroad.sessions.client import MainLoopClient, PendingRequest, SQSMainLoopClient
from postroad.sessions.loop import Adapter, MainLoop
from postroad.sessions.session import Session
from postroad.sessions.slices import SliceAccessor, reducer
from postroad.sessions.state import Snapshot, Subscription
from postroad.sessions.vocabulary import (
    Budget,
    MainLoopCompleted,
    MainLoopConfig,
    MainLoopFailed,
    MainLoopRequest,
    PromptExecuted,
    PromptRendered,
    PromptResponse,
    TokenUsage,
    ToolInvoked,
    ToolResult,
)

__all__ = [
    "Adapter",
    "Budget",
    "DeadlineExceeded",
    "InvalidSnapshot",
    "MainLoop",
    "MainLoopClient",
    "MainLoopCompleted",
    "MainLoopConfig",
    "MainLoopFailed",
    "MainLoopRequest",
    "PendingRequest",
    "PromptExecuted",
    "PromptRendered",
    "PromptResponse",
    "RequestFailed",
    "RequestTimeout",
    "SQSMainLoopClient",
    "Session",
    "SliceAccessor",
    "Snapshot",
    "Subscription",
    "TokenUsage",
    "ToolInvoked",
    "ToolResult",
    "reducer",
]
