"""The categories of errors: what belongs to each, and whether another attempt makes sense."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """One row of the table. `words` are codes and exception types, `phrases` are looked for in messages only."""

    name: str
    retryable: bool
    statuses: tuple[int, ...] = ()
    codes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()


CATEGORIES = (
    Category(
        name="auth",
        retryable=False,
        statuses=(401, 403),
        codes=("InvalidCredentials", "AccessDenied"),
        types=("AuthenticationError", "AuthorizationError", "InvalidCredentials", "AccessDenied", "PermissionError"),
        phrases=("invalid api key",),
    ),
    Category(
        name="validation",
        retryable=False,
        statuses=(400, 422),
        types=("ValidationError", "ValueError"),
        phrases=("unknown task",),
    ),
    Category(name="parse", retryable=False, types=("JSONDecodeError",), phrases=("unexpected token",)),
    Category(
        name="not-found",
        retryable=False,
        statuses=(404,),
        codes=("ENOENT", "MODULE_NOT_FOUND"),
        types=("FileNotFoundError", "ModuleNotFoundError"),
    ),
    Category(
        name="programming",
        retryable=False,
        types=(
            *("TypeError", "NameError", "UnboundLocalError", "AttributeError", "AssertionError", "ImportError"),
            *("SyntaxError", "IndentationError", "TabError", "ReferenceError", "RangeError"),
            *("LookupError", "KeyError", "IndexError"),
            *("ArithmeticError", "ZeroDivisionError", "OverflowError", "FloatingPointError"),
        ),
    ),
    Category(
        name="rate-limit",
        retryable=True,
        statuses=(429,),
        codes=("ThrottlingException",),
        types=("RateLimitError", "ThrottlingException"),
        phrases=("too many requests",),
    ),
    Category(
        name="server-error",
        retryable=True,
        statuses=tuple(range(500, 600)),
        codes=("InternalServerError", "ServiceUnavailable", "BadGateway"),
        types=("InternalServerError", "ServiceUnavailable", "BadGateway"),
    ),
    Category(
        name="network",
        retryable=True,
        codes=("ETIMEDOUT", "ECONNREFUSED", "ECONNRESET", "ENOTFOUND", "EPIPE", "EAI_AGAIN"),
        types=(
            *("ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "ConnectionAbortedError"),
            *("BrokenPipeError", "gaierror"),
        ),
        phrases=("socket hang up",),
    ),
    Category(
        name="timeout",
        retryable=True,
        codes=("TIMEOUT", "ESOCKETTIMEDOUT"),
        types=("TimeoutError", "AbortError"),
    ),
)
