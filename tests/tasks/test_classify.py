"""Errors are classified by status, code, type and words."""

from __future__ import annotations

import json
import socket
import urllib.error
from email.message import Message
from typing import Any

import pytest

from postroad.tasks import ErrorClass, NonRetryable, Retryable, classify_error
from postroad.tasks.error_categories import CATEGORIES, classify_exception

RETRYABLE = {"rate-limit", "server-error", "network", "timeout"}


@pytest.mark.parametrize(
    ("category", "known"),
    [
        ("auth", {"status": 401}),
        ("auth", {"status": 403}),
        ("auth", {"code": "AccessDenied"}),
        ("auth", {"type_name": "AuthenticationError"}),
        ("auth", {"type_name": "AuthorizationError"}),
        ("auth", {"type_name": "InvalidCredentials"}),
        ("auth", {"type_name": "PermissionError"}),
        ("validation", {"status": 400}),
        ("validation", {"status": 422}),
        ("validation", {"type_name": "ValidationError"}),
        ("validation", {"type_name": "ValueError"}),
        ("parse", {"type_name": "JSONDecodeError"}),
        ("not-found", {"status": 404}),
        ("not-found", {"code": "ENOENT"}),
        ("not-found", {"code": "MODULE_NOT_FOUND"}),
        ("not-found", {"type_name": "FileNotFoundError"}),
        ("not-found", {"type_name": "ModuleNotFoundError"}),
        *(
            ("programming", {"type_name": name})
            for name in (
                *("TypeError", "NameError", "AttributeError", "SyntaxError", "KeyError", "IndexError", "LookupError"),
                *("AssertionError", "ArithmeticError", "ZeroDivisionError", "ImportError", "ReferenceError"),
                *("RangeError", "OverflowError"),
            )
        ),
        ("rate-limit", {"status": 429}),
        ("rate-limit", {"type_name": "RateLimitError"}),
        ("rate-limit", {"code": "ThrottlingException"}),
        ("server-error", {"status": 500}),
        ("server-error", {"status": 599}),
        ("server-error", {"type_name": "ServiceUnavailable"}),
        ("server-error", {"code": "BadGateway"}),
        *(
            ("network", {"code": code})
            for code in ("ETIMEDOUT", "ECONNREFUSED", "ECONNRESET", "ENOTFOUND", "EPIPE", "EAI_AGAIN")
        ),
        ("network", {"type_name": "ConnectionResetError"}),
        ("network", {"type_name": "gaierror"}),
        ("timeout", {"code": "TIMEOUT"}),
        ("timeout", {"code": "ESOCKETTIMEDOUT"}),
        ("timeout", {"type_name": "TimeoutError"}),
        ("timeout", {"type_name": "AbortError"}),
        ("unknown", {"type_name": "RuntimeError"}),
        ("unknown", {"status": 418}),
    ],
)
def test_an_error_is_known_by_status_code_or_type(category: str, known: dict[str, Any]) -> None:
    assert classify_error("something", **known) == ErrorClass(category, category in RETRYABLE)


@pytest.mark.parametrize(
    ("message", "category"),
    [
        ("Invalid API key", "auth"),
        ("unknown task 'x'", "validation"),
        ("Unexpected token < in JSON", "parse"),
        ("Too many requests, slow down", "rate-limit"),
        ("HTTP 503", "server-error"),
        ("upstream answered with status 502", "server-error"),
        ("connect ECONNREFUSED 127.0.0.1:80", "network"),
        ("ETIMEDOUT", "network"),
        ("socket hang up", "network"),
        ("TypeError: x is not a function", "programming"),
        ("took 5000 ms", "unknown"),
        ("500", "unknown"),
        ("page 404 of 429", "unknown"),
        ("XECONNRESETX", "unknown"),
        ("my_ValueErrors", "unknown"),
        ("", "unknown"),
    ],
)
def test_whole_words_of_the_message_come_last_and_bare_numbers_say_nothing(message: str, category: str) -> None:
    assert classify_error(message) == ErrorClass(category, category in RETRYABLE)


def test_the_status_counts_before_the_code_and_the_code_before_the_type() -> None:
    assert classify_error("ValueError", status=429, code="ENOENT", type_name="TypeError").category == "rate-limit"
    assert classify_error("ValueError", code="ENOENT", type_name="TypeError").category == "not-found"
    assert classify_error("HTTP 503", type_name="TypeError").category == "programming"


def test_a_name_of_the_table_counts_as_code_and_as_type() -> None:
    for category in CATEGORIES:
        for name in (*category.codes, *category.types):
            assert classify_error("something", code=name).category == category.name
            assert classify_error("something", type_name=name).category == category.name


def test_a_timeout_that_names_etimedout_is_the_networks() -> None:
    assert classify_error("connect ETIMEDOUT 10.0.0.1:443", type_name="TimeoutError").category == "network"
    assert classify_exception(TimeoutError("connect ETIMEDOUT")).category == "network"
    assert classify_exception(TimeoutError("read timed out")).category == "timeout"


class OwnTimeout(TimeoutError):
    pass


class ClientError(Exception):
    """As botocore raises it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__("no")
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "category", "retryable"),
    [
        (OwnTimeout("slow"), "timeout", True),
        (TimeoutError(110, "Connection timed out"), "network", True),
        (ConnectionRefusedError(111, "refused"), "network", True),
        (FileNotFoundError(2, "no such file"), "not-found", False),
        (PermissionError(13, "denied"), "auth", False),
        (socket.gaierror(-2, "Name or service not known"), "network", True),
        (json.JSONDecodeError("bad", "x", 0), "parse", False),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), "validation", False),
        (urllib.error.HTTPError("http://x", 503, "busy", Message(), None), "server-error", True),
        (ClientError(400, "ThrottlingException"), "rate-limit", True),
        (ClientError(400, "NoSuchCode"), "validation", False),
        (ClientError(200, "ThrottlingException"), "rate-limit", True),
        (KeyError("x"), "programming", False),
        (RuntimeError("who knows"), "unknown", False),
        (Retryable("again"), "unknown", True),
        (Retryable("again", category="rate-limit"), "rate-limit", True),
        (NonRetryable("HTTP 503"), "server-error", False),
        (caused(Retryable("again"), ConnectionResetError("gone")), "network", True),
        (ExceptionGroup("several", [ConnectionResetError("gone"), TimeoutError("slow")]), "network", True),
        (ExceptionGroup("several", [ConnectionResetError("gone"), KeyError("x")]), "programming", False),
        (ExceptionGroup("several", [ExceptionGroup("more", [Retryable("again")])]), "unknown", True),
        (caused(RuntimeError("failed"), ExceptionGroup("several", [TimeoutError("slow")])), "timeout", True),
        (caused(NonRetryable("no"), ExceptionGroup("several", [TimeoutError("slow")])), "timeout", False),
    ],
)
def test_an_exception_is_known_by_what_it_carries_and_derives_from(
    error: Exception, category: str, retryable: bool
) -> None:
    assert classify_exception(error) == ErrorClass(category, retryable)
