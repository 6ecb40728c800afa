"""What the senders of both providers share: checks of arguments, answers, ids, and quiet libraries."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
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
    """The answer of a provider; `status` is None if none came, and `why` then says what happened."""

    status: int | None
    headers: Mapping[str, str]
    body: bytes
    why: str = ""
    lost_connection: int | None = None
    """The number of the connection that was lost before the answer came."""


class MismatchCounter:
    """Distinguishes dead devices from a wrong configuration.

    Refusals for one of `reasons` mean that a device belongs to another app or project. After five of them without a
    success in between, it is our own topic or project that is wrong, and no device is dead.
    """

    def __init__(self, *reasons: str) -> None:
        self._reasons = reasons
        self._lock = threading.Lock()
        self._in_a_row = 0

    def checked(self, result: TokenResult) -> TokenResult:
        """Return the result, with the outcome `auth` from the fifth refusal on."""
        with self._lock:
            if result.outcome == "sent":
                self._in_a_row = 0
            if result.outcome != "dead_token" or result.reason not in self._reasons:
                return result
            self._in_a_row += 1
            return replace(result, outcome="auth") if self._in_a_row >= _MOST_IN_A_ROW else result


class SharedToken:
    """A provider's access token, which one thread fetches and all share until it is old.

    `may_renew` says whether the provider would accept another one so soon.
    """

    def __init__(
        self, fetch: Callable[[], str], *, is_old: Callable[[], bool], may_renew: Callable[[], bool] = lambda: True
    ) -> None:
        self._fetch, self._is_old, self._may_renew = fetch, is_old, may_renew
        self._lock = threading.Lock()
        self._text: str | None = None

    def current(self) -> str:
        with self._lock:
            if self._text is None or self._is_old():
                self._text = self._fetch()
            return self._text

    def instead_of(self, refused: str) -> str | None:
        """Return another token than the refused one; None if there can be none yet."""
        with self._lock:
            if self._text is None or self._text == refused:
                if not self._may_renew():
                    return None
                self._text = self._fetch()
            return self._text


def document(answer: Answer) -> dict[str, Any]:
    """Return the JSON object of the answer; empty if it holds none."""
    try:
        found = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def printable(value: object) -> str:
    """Return a text of the provider in a form that is fit for a log line."""
    return _UNPRINTABLE.sub("?", value)[:_MOST_OF_A_REASON] if isinstance(value, str) else ""


def unanswered(answer: Answer, token: str) -> TokenResult:
    """Return the result of a push that may or may not have arrived: send it again."""
    return TokenResult(token, "retry", None, answer.why, lost_connection=answer.lost_connection)


def retry_after(answer: Answer, now: datetime) -> float | None:
    """Return the seconds that the provider asks to wait, which it gives as a number or as a date."""
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
    """Raise ConfigurationError with the remedy if an import inside the block fails."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"{error.name} is not installed", remedy="pip install 'postroad[push]'") from error


def checked_name(value: object, field: str) -> str:
    """Return the name, which is fit for a URL, a header and a claim of a token."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ConfigurationError(f"{field}: is not a name of letters, digits, dots and hyphens", field=field)
    return value


_PUSHES: Final = uuid.uuid5(uuid.NAMESPACE_URL, "https://postroad.dev/push")


def collapse_id(push_id: str) -> str:
    """Return the id under which provider and device keep only the newest of several copies."""
    return hashlib.sha256(push_id.encode()).hexdigest()[:32]


def request_id(push_id: str, token: str) -> str:
    """Return the id of this push to this device, the same whenever it is sent."""
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
    """Silence the libraries in the threads that talk to providers, and nowhere else."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_is_elsewhere)


def _is_elsewhere(_: logging.LogRecord) -> bool:
    return threading.current_thread().name != THREAD_NAME
