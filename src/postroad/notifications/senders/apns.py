"""Pushes to Apple's devices: APNs with a team's token, over one HTTP/2 connection."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import msgspec

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import InvalidNotification
from postroad.notifications.checks import checked_token
from postroad.notifications.devices import Outcome, TokenResult
from postroad.notifications.messages import PushNotification, PushPayload
from postroad.notifications.senders.answers import (
    Answer,
    Doubt,
    checked_lifetime,
    checked_name,
    checked_seconds,
    collapse_id,
    document,
    needing_extra,
    request_id,
    retry_after,
    unanswered,
    word,
)

_DEAD_TOKENS: Final = frozenset({"BadDeviceToken", "DeviceTokenNotForTopic"})
_REFUSED_TEAM: Final = frozenset({"ExpiredProviderToken", "InvalidProviderToken"})
_REFUSED_TOPIC: Final = frozenset({"BadTopic", "MissingTopic", "TopicDisallowed"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class APNSSender:
    """Sends pushes to Apple's devices. All threads share its connection and its token."""

    def __init__(
        self,
        *,
        key: str,
        key_id: str,
        team_id: str,
        topic: str,
        base_url: str = "https://api.push.apple.com",
        ca_file: str | Path | None = None,
        timeout: float = 10.0,
        expires_in: int = 86_400,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        names = {"key_id": checked_name(key_id, "key_id"), "team_id": checked_name(team_id, "team_id")}
        self._topic = checked_name(topic, "topic")
        self._expires_in = checked_lifetime(expires_in, "expires_in")
        self._clock = clock
        seconds = checked_seconds(timeout, "timeout")
        with needing_extra():
            from postroad.notifications.senders.addresses import provider
            from postroad.notifications.senders.tokens import ProviderToken
            from postroad.notifications.senders.wire import Wire
        self._team = ProviderToken(key, clock=clock, **names)
        self._doubt = Doubt("DeviceTokenNotForTopic")
        self._wire = Wire(provider(base_url, ca_file, http1=False), timeout=seconds)

    def send(self, push: PushNotification, token: str, *, push_id: str) -> TokenResult:
        """Send the push to the device. Sent again under the same `push_id` it replaces the first one."""
        path = f"/3/device/{quote(_safe(token), safe='')}"
        headers, body = self._headers(token, push_id), _body(push)
        team = self._team.current()
        result, refused = self._post(path, team, headers, body, token)
        if refused and (another := self._team.instead_of(team)) is not None:
            result, _ = self._post(path, another, headers, body, token)
        return self._doubt.judge(result)

    def close(self) -> None:
        """Close the connection. Closing twice changes nothing."""
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _headers(self, token: str, push_id: str) -> dict[str, str]:
        expires = int(self._clock.now().timestamp()) + self._expires_in if self._expires_in else 0
        return {
            "content-type": "application/json",
            "apns-topic": self._topic,
            "apns-push-type": "alert",
            "apns-priority": "10",
            "apns-expiration": str(expires),
            "apns-collapse-id": collapse_id(push_id),
            "apns-id": request_id(push_id, token),
        }

    def _post(self, path: str, team: str, headers: dict[str, str], body: bytes, token: str) -> tuple[TokenResult, bool]:
        """The result, and whether it was the team's token that was refused."""
        answer = self._wire.post(path, {**headers, "authorization": f"bearer {team}"}, body)
        result = _result(answer, token, self._clock.now())
        return result, result.reason in _REFUSED_TEAM


def aps(payload: PushPayload) -> dict[str, Any]:
    """Sound, badge and thread as Apple's devices read them."""
    found = {"sound": payload.sound, "badge": payload.badge, "thread-id": payload.thread}
    return {name: value for name, value in found.items() if value is not None}


def _safe(token: str) -> str:
    if checked_token(token) == ".":
        raise InvalidNotification("token: is no device token", field="token")
    return token


def _body(push: PushNotification) -> bytes:
    payload = push.payload
    if "aps" in payload.data:
        raise InvalidNotification("payload.data.aps: is a name that APNs keeps for itself", field="payload.data.aps")
    alert = {"title": payload.title, "body": payload.body}
    return msgspec.json.encode({"aps": {"alert": alert, **aps(payload)}, **payload.data})


def _result(answer: Answer, token: str, now: datetime) -> TokenResult:
    if answer.status is None:
        return unanswered(answer, token)
    said = document(answer)
    reason = word(said.get("reason"))
    return TokenResult(
        token,
        _outcome(answer.status, reason),
        answer.status,
        reason,
        word(answer.headers.get("apns-id")) or None,
        retry_after(answer, now),
        _dead_since(said) if answer.status == 410 else None,
    )


def _outcome(status: int, reason: str) -> Outcome:
    if status == 200:
        return "sent"
    if status == 410 or (status == 400 and reason in _DEAD_TOKENS):
        return "dead_token"
    # What concerns our team, key, certificate or topic concerns every push.
    if status == 403 or (status == 400 and reason in _REFUSED_TOPIC):
        return "auth"
    return "permanent" if 400 <= status < 500 and status != 429 else "retry"


def _dead_since(said: dict[str, Any]) -> datetime | None:
    """The moment that Apple gives in milliseconds."""
    milliseconds = said.get("timestamp")
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except (OverflowError, ValueError):
        return None
