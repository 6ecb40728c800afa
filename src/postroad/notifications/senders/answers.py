"""What both providers' answers have in common."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from postroad.notifications.results import TokenResult

_SECONDS = re.compile(r"\d{1,9}")
_UNPRINTABLE = re.compile(r"[^ -~]")
_MOST_OF_A_REASON: Final = 100
_MOST_IN_A_ROW: Final = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """What the provider said; `status` is None when nothing was heard, and `why` then says what happened."""

    status: int | None
    headers: Mapping[str, str]
    body: bytes
    why: str = ""
    lost_connection: int | None = None
    """The number of the connection that was lost with it."""


class Doubt:
    """Tells devices that are dead from a configuration that is wrong.

    Some refusals mean that one device belongs to another app or project. When five follow each other without a
    success, it is our own topic or project that is wrong, and no device is at fault.

    Args:
        reasons: The provider's words for such a refusal.
    """

    def __init__(self, *reasons: str) -> None:
        self._reasons = reasons
        self._lock = threading.Lock()
        self._in_a_row = 0

    def judge(self, result: TokenResult) -> TokenResult:
        """Return the result, as `auth` when it is one refusal too many."""
        with self._lock:
            if result.outcome == "sent":
                self._in_a_row = 0
            if result.outcome != "dead_token" or result.reason not in self._reasons:
                return result
            self._in_a_row += 1
            return replace(result, outcome="auth") if self._in_a_row >= _MOST_IN_A_ROW else result


def document(answer: Answer) -> dict[str, Any]:
    """The JSON object of the answer; empty when it holds none."""
    try:
        found = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def member(value: object, name: str) -> dict[str, Any]:
    """The object under this name; empty when there is none."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def items(value: object) -> list[Any]:
    """The list, or an empty one for everything else."""
    return value if isinstance(value, list) else []


def word(value: object) -> str:
    """A provider's word for what happened, fit for a log line."""
    return _UNPRINTABLE.sub("?", value)[:_MOST_OF_A_REASON] if isinstance(value, str) else ""


def unanswered(answer: Answer, token: str) -> TokenResult:
    """Whether the push arrived is not known: send it again."""
    return TokenResult(token, "retry", None, answer.why, lost_connection=answer.lost_connection)


def retry_after(answer: Answer, now: datetime) -> float | None:
    """The seconds that the provider asks to wait, given as a number or as a date."""
    text = answer.headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds())
