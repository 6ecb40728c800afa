"""What both providers' senders share: arguments, answers, and what is kept out of the log."""

from __future__ import annotations

import hashlib
import logging
import math
import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from postroad.errors import ConfigurationError
from postroad.notifications.devices import TokenResult

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


_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_:-]|\.(?!\.)){0,254}")


@contextmanager
def needing_extra() -> Iterator[None]:
    """Say how to install what an import inside does not find."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"{error.name} is not installed", remedy="pip install 'postroad[push]'") from error


def checked_name(value: object, field: str) -> str:
    """The name, fit for a URL, a header and a token's claim."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ConfigurationError(f"{field}: is not a name of letters, digits, dots and hyphens", field=field)
    return value


def checked_seconds(value: object, field: str) -> float:
    """The number of seconds, above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigurationError(f"{field}: {value!r} is not a number of seconds above 0", field=field)
    return float(value)


def checked_lifetime(value: object, field: str) -> int:
    """The whole number of seconds, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"{field}: {value!r} is not a whole number of seconds of 0 or more", field=field)
    return value


_PUSHES: Final = uuid.uuid5(uuid.NAMESPACE_URL, "https://postroad.dev/push")


def collapse_id(push_id: str) -> str:
    """The name under which the provider and the device keep only the newest of several copies."""
    return hashlib.sha256(push_id.encode()).hexdigest()[:32]


def request_id(push_id: str, token: str) -> str:
    """The name of this push to this device, the same whenever it is sent."""
    return str(uuid.uuid5(_PUSHES, f"{push_id}\n{token}"))


THREAD_NAME: Final = "postroad-push"
_LOGGERS: Final = (
    "httpx",
    "httpcore.connection",
    "httpcore.http11",
    "httpcore.http2",
    "httpcore.proxy",
    "hpack.hpack",
    "hpack.table",
)


def silence_libraries() -> None:
    """Keep the libraries quiet in the threads that talk to providers, and nowhere else."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_spoken_elsewhere)


def _spoken_elsewhere(_: logging.LogRecord) -> bool:
    return threading.current_thread().name != THREAD_NAME
