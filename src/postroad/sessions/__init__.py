"""Sessions: state that follows events in every process; and main loops that answer requests over a bus."""

from postroad.errors import DeadlineExceeded, InvalidSnapshot, RequestFailed, RequestTimeout
from postroad.sessions.client import MainLoopClient, PendingRequest, SQSMainLoopClient
from postroad.sessions.loop import Adapter, MainLoop
from postroad.sessions.requests import Budget, MainLoopCompleted, MainLoopConfig, MainLoopFailed, MainLoopRequest
from postroad.sessions.session import Session
from postroad.sessions.slices import SliceAccessor, reducer
from postroad.sessions.snapshots import Snapshot
from postroad.sessions.telemetry import (
    PromptExecuted,
    PromptRendered,
    PromptResponse,
    Subscription,
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
