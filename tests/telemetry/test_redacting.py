"""Secrets in texts that are stored."""

from __future__ import annotations

import pytest

from postroad.telemetry import redact


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("login failed: password=hunter2 for ann", "login failed: password=*** for ann"),
        ("{'api_key': 'abc def', 'id': 7}", "{'api_key': ***, 'id': 7}"),
        ('{"clientSecret": "abc", "id": 7}', '{"clientSecret": ***, "id": 7}'),
        ("GET /x?access_token=abc.def&page=2", "GET /x?access_token=***&page=2"),
        ("Authorization: Bearer abcdefgh.ijkl refused", "Authorization: Bearer *** refused"),
        ("cannot reach postgresql://app:pa55@db:5432/shop", "cannot reach postgresql://***@db:5432/shop"),
        ("aws://x?endpoint_url=http://ann:p@ss@h:4566&stage=a", "aws://x?endpoint_url=http://***@h:4566&stage=a"),
        ("aws://x?endpoint_url=http%3A%2F%2Fann%3Apw%40h", "aws://x?endpoint_url=http%3A%2F%2F***%40h"),
        ("key AKIAIOSFODNN7EXAMPLE is unknown", "key *** is unknown"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln is over", "jwt *** is over"),
        ("token pr_0123456789abcdef0123 revoked", "token *** revoked"),
        ("POST https://hooks.slack.com/services/T0/B0/XyZ: 404", "POST https://hooks.slack.com/services/***: 404"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE", "***"),
    ],
)
def test_sec13_what_looks_like_a_secret_is_hidden(text: str, stored: str) -> None:
    assert redact(text) == stored


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: order 17 is unknown [orders.py:place]",
        "InvalidTokenError: the signature has expired [auth.py:check]",
        "KeyError: 'token'",
        "see https://example.com/a@b and ann@example.com",
        "the token expired",
        "",
    ],
)
def test_sec13_what_tells_of_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("text", ["a" * 100_000, "token" * 20_000, "://" * 30_000, "basic " * 20_000, "eyJ" * 30_000])
def test_a_hostile_text_is_looked_through_once(text: str) -> None:
    assert len(redact(text)) <= len(text)
