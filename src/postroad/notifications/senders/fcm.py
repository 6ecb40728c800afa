"""Pushes to Google's devices: FCM v1 with a project's access token."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError
from postroad.notifications.checks import checked_token
from postroad.notifications.devices import Outcome, TokenResult
from postroad.notifications.messages import PushNotification, PushPayload
from postroad.notifications.senders.answers import (
    Answer,
    Doubt,
    checked_name,
    checked_seconds,
    collapse_id,
    document,
    items,
    member,
    needing_extra,
    retry_after,
    unanswered,
    word,
)
from postroad.notifications.senders.apns import aps
from postroad.notifications.senders.tokens import AccessTokens, NoToken

_TTL: Final = "86400s"


class FCMSender:
    """Sends pushes to devices that Firebase knows. All threads share its connection and its token."""

    def __init__(
        self,
        *,
        project_id: str,
        token_provider: Callable[[], str] | None = None,
        credentials_file: str | Path | None = None,
        base_url: str = "https://fcm.googleapis.com",
        ca_file: str | Path | None = None,
        timeout: float = 10.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._path = f"/v1/projects/{checked_name(project_id, 'project_id')}/messages:send"
        self._clock = clock
        seconds = checked_seconds(timeout, "timeout")
        with needing_extra():
            from postroad.notifications.senders.addresses import provider
            from postroad.notifications.senders.wire import Wire
        self._wire = Wire(provider(base_url, ca_file, http1=True), timeout=seconds)
        self._doubt = Doubt("SENDER_ID_MISMATCH")
        self._tokens = _tokens(token_provider, credentials_file, ca_file, seconds)

    def send(self, push: PushNotification, token: str, *, push_id: str) -> TokenResult:
        """Send the push to the device. Sent again under the same `push_id` it replaces the first one."""
        body = _body(push, checked_token(token), collapse_id(push_id))
        try:
            access = self._tokens.current()
            result = self._post(access, body, token)
            if result.status == 401:
                result = self._post(self._tokens.instead_of(access), body, token)
        except NoToken as error:
            return TokenResult(token, "retry" if error.passing else "auth", None, error.why)
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

    def _post(self, access: str, body: bytes, token: str) -> TokenResult:
        headers = {"content-type": "application/json", "authorization": f"Bearer {access}"}
        return _result(self._wire.post(self._path, headers, body), token, self._clock.now())


def _tokens(
    token_provider: Callable[[], str] | None,
    credentials_file: str | Path | None,
    ca_file: str | Path | None,
    timeout: float,
) -> AccessTokens:
    if (token_provider is None) == (credentials_file is None):
        raise ConfigurationError(
            "token_provider: give either it or credentials_file, and not both", field="token_provider"
        )
    if token_provider is not None:
        return AccessTokens(token_provider)
    with needing_extra():
        from postroad.notifications.senders.service_account import service_account_tokens
    return service_account_tokens(str(credentials_file), ca_file, timeout)


def _body(push: PushNotification, token: str, collapse: str) -> bytes:
    payload = push.payload
    message = {
        "token": token,
        "notification": {"title": payload.title, "body": payload.body},
        "data": payload.data,
        "android": {"collapse_key": collapse, "ttl": _TTL, "notification": _android(payload, collapse)},
        "apns": {"headers": {"apns-collapse-id": collapse}, "payload": {"aps": aps(payload)}},
        "webpush": {"headers": {"Topic": collapse}, "notification": {"tag": collapse}},
    }
    return msgspec.json.encode({"message": message})


def _android(payload: PushPayload, collapse: str) -> dict[str, Any]:
    found = {"tag": collapse, "sound": payload.sound, "notification_count": payload.badge}
    return {name: value for name, value in found.items() if value is not None}


def _result(answer: Answer, token: str, now: datetime) -> TokenResult:
    if answer.status is None:
        return unanswered(answer, token)
    said = document(answer)
    error = member(said, "error")
    code = _code(error)
    return TokenResult(
        token,
        _outcome(answer.status, code, error),
        answer.status,
        code,
        word(said.get("name")) or None,
        retry_after(answer, now),
    )


def _code(error: dict[str, Any]) -> str:
    """FCM's own word when it gives one, else that of all Google APIs."""
    codes = [word(member({"detail": detail}, "detail").get("errorCode")) for detail in items(error.get("details"))]
    return next(filter(None, codes), word(error.get("status")))


def _outcome(status: int, code: str, error: dict[str, Any]) -> Outcome:
    if status == 200:
        return "sent"
    if (status, code) in ((404, "UNREGISTERED"), (403, "SENDER_ID_MISMATCH")):
        return "dead_token"
    if status == 400 and code == "INVALID_ARGUMENT" and "message.token" in _violations(error):
        return "dead_token"
    # What concerns our account or project concerns every push.
    if status in (401, 403, 404):
        return "auth"
    return "permanent" if 400 <= status < 500 and status != 429 else "retry"


def _violations(error: dict[str, Any]) -> set[str]:
    """The fields that Google says are wrong."""
    details = [detail for detail in items(error.get("details")) if isinstance(detail, dict)]
    violations = [violation for detail in details for violation in items(detail.get("fieldViolations"))]
    return {word(violation.get("field")) for violation in violations if isinstance(violation, dict)}
