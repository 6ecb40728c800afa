"""Sessions of the dashboard: a signed cookie that refers to a token, and the proof that a form came from our page."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque
from dataclasses import dataclass
from typing import Final

from postroad.clock import Clock
from postroad.errors import RateLimited
from postroad.http.tokens import digest

COOKIE: Final = "postroad_session"
SECONDS: Final = 12 * 3_600
_FAILURES, _WINDOW_SECONDS = 10, 60.0
_MOST_ADDRESSES = 10_000


@dataclass(frozen=True, slots=True)
class Session:
    """A caller who has logged in: the hash of the token, which decides what they may do."""

    sha256: str
    csrf: str
    """What each of its forms has to send along."""


class Sessions:
    """Makes and reads cookies. Nothing is stored: a revoked token ends its sessions, and so does a new secret."""

    def __init__(self, secret: str, clock: Clock) -> None:
        self._key = hmac.digest(secret.encode(), b"postroad sessions", "sha256")
        self._clock = clock

    def begin(self, token: str) -> str:
        """Return the cookie of a new session."""
        text = f"{int(self._clock.now().timestamp()) + SECONDS}.{digest(token)}.{secrets.token_hex(8)}"
        return f"{text}.{self._mac('session', text)}"

    def read(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie; None if there is none, or if it is over or not ours."""
        text, _, seal = (cookie or "").rpartition(".")
        if not hmac.compare_digest(seal.encode(), self._mac("session", text).encode()):
            return None
        until, sha256, _ = text.split(".")
        if int(until) <= self._clock.now().timestamp():
            return None
        return Session(sha256, self._mac("form", text))

    def _mac(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}\0{text}".encode(), hashlib.sha256).hexdigest()


class FailedLogins:
    """Refuses an address after ten wrong tokens in a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[str, deque[float]] = {}

    def check(self, address: str) -> None:
        """Raise `RateLimited` if the address has failed too often."""
        recent = self._recent(address)
        if len(recent) >= _FAILURES:
            wait = max(1.0, recent[0] + _WINDOW_SECONDS - self._clock.monotonic())
            raise RateLimited(f"{_FAILURES} wrong tokens in a minute", retry_after=wait)

    def note(self, address: str) -> None:
        """Note a wrong token."""
        if len(self._failures) >= _MOST_ADDRESSES:
            self._failures = {each: times for each in [*self._failures] if (times := self._recent(each))}
        self._failures.setdefault(address, deque(maxlen=_FAILURES)).append(self._clock.monotonic())

    def _recent(self, address: str) -> deque[float]:
        times = self._failures.get(address, deque())
        while times and times[0] <= self._clock.monotonic() - _WINDOW_SECONDS:
            times.popleft()
        return times
