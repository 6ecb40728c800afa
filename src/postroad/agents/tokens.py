"""Tokens of agents. A token names its agent, so that it is looked up by id and compared with what is stored: a hash."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from postroad.agents.rules import AGENT_ID

_TOKEN = re.compile(rf"pr_({AGENT_ID})\.[A-Za-z0-9_-]{{43}}")


def new_token(agent_id: str) -> str:
    """A secret that nobody can guess."""
    return f"pr_{agent_id}.{secrets.token_urlsafe(32)}"


def digest(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def claimed_id(token: object) -> str | None:
    """The agent that the token says it belongs to; None for what is no agent's token."""
    match = _TOKEN.fullmatch(token) if isinstance(token, str) else None
    return None if match is None else match[1]


def matches(token: str, stored: str | None) -> bool:
    """Whether the stored hash is this token's, in a time that tells nothing."""
    return stored is not None and hmac.compare_digest(digest(token), stored)
