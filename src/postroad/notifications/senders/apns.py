"""Pushes to Apple's devices: APNs with the token of a team, over one HTTP/2 connection."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self
from urllib.parse import quote

import msgspec
from msgspec import Meta

from postroad.arguments import SecondsAboveZero, check
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, InvalidNotification
from postroad.notifications.devices import Outcome, TokenResult
from postroad.notifications.messages import PushNotification, PushPayload, checked_token
from postroad.notifications.senders import answers
from postroad.notifications.senders.answers import Answer, MismatchCounter, SharedToken

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_REUSED_SECONDS: Final = 50 * 60
_SOONEST_SECONDS: Final = 20 * 60
_DEAD_TOKENS: Final = frozenset({"BadDeviceToken", "DeviceTokenNotForTopic"})
_REFUSED_TEAM: Final = frozenset({"ExpiredProviderToken", "InvalidProviderToken"})
_REFUSED_TOPIC: Final = frozenset({"BadTopic", "MissingTopic", "TopicDisallowed"})
_LIFETIME: Final = Annotated[int, Meta(ge=0, description="a whole number of seconds of 0 or more")]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class APNSSender:
    """Sends pushes to Apple's devices. All threads share its connection and its token.

    Args:
        key: The text of the .p8 file that Apple offers for download, a P-256 private key in PEM.
        key_id: Apple's id of this key.
        team_id: Apple's id of the team.
        topic: The bundle id of the app.
        base_url: APNs for production by default; `https://api.sandbox.push.apple.com` for development builds.
        ca_file: The authorities to trust instead of the public ones; for tests.
        timeout: Seconds to wait for an answer, by default 10.
        expires_in: Seconds for which Apple tries to deliver a push, by default a day; 0: once, at once.
        clock: The time; for tests.

    Raises:
        ConfigurationError: An argument cannot be used, or the extra `push` is not installed.

    Example:
        key = Path("AuthKey.p8").read_text()
        apns = APNSSender(key=key, key_id="ABC123", team_id="DEF456", topic="com.example.chat")
    """

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
        names = {"key_id": answers.checked_name(key_id, "key_id"), "team_id": answers.checked_name(team_id, "team_id")}
        self._topic = answers.checked_name(topic, "topic")
        check(expires_in, _LIFETIME, "expires_in", ConfigurationError)
        self._expires_in = expires_in
        self._clock = clock
        check(timeout, SecondsAboveZero, "timeout", ConfigurationError)
        with answers.needing_extra():
            from postroad.notifications.senders.addresses import provider
            from postroad.notifications.senders.http2 import ProviderClient

            self._team = _team_token(key, clock=clock, **names)
        self._mismatches = MismatchCounter("DeviceTokenNotForTopic")
        self._client = ProviderClient(provider(base_url, ca_file, http1=False), timeout=timeout)

    def send(self, push: PushNotification, token: str, *, push_id: str) -> TokenResult:
        """Send `push` to the device `token`. Sent again under the same `push_id`, it replaces the first one."""
        if checked_token(token) == ".":
            raise InvalidNotification("token: is not a device token", field="token")
        path = f"/3/device/{quote(token, safe='')}"
        headers, body = self._headers(token, push_id), _body(push)
        team = self._team.current()
        result = self._post(path, team, headers, body, token)
        if result.reason in _REFUSED_TEAM and (another := self._team.instead_of(team)) is not None:
            result = self._post(path, another, headers, body, token)
        return self._mismatches.checked(result)

    def close(self) -> None:
        """Close the connection; safe to repeat."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _headers(self, token: str, push_id: str) -> dict[str, str]:
        expires = int(self._clock.now().timestamp()) + self._expires_in if self._expires_in else 0
        return {
            "content-type": "application/json",
            "apns-topic": self._topic,
            "apns-push-type": "alert",
            "apns-priority": "10",
            "apns-expiration": str(expires),
            "apns-collapse-id": answers.collapse_id(push_id),
            "apns-id": answers.request_id(push_id, token),
        }

    def _post(self, path: str, team: str, headers: dict[str, str], body: bytes, token: str) -> TokenResult:
        answer = self._client.post(path, {**headers, "authorization": f"bearer {team}"}, body)
        return _result(answer, token, self._clock.now())


def aps(payload: PushPayload) -> dict[str, Any]:
    """Return sound, badge and thread as Apple's devices read them."""
    found = {"sound": payload.sound, "badge": payload.badge, "thread-id": payload.thread}
    return {name: value for name, value in found.items() if value is not None}


def _body(push: PushNotification) -> bytes:
    payload = push.payload
    alert = {"title": payload.title, "body": payload.body}
    return msgspec.json.encode({**payload.data, "aps": {"alert": alert, **aps(payload)}})


def _result(answer: Answer, token: str, now: datetime) -> TokenResult:
    if answer.status is None:
        return answers.unanswered(answer, token)
    said = answers.document(answer)
    reason = answers.printable(said.get("reason"))
    return TokenResult(
        token,
        _outcome(answer.status, reason),
        answer.status,
        reason,
        answers.printable(answer.headers.get("apns-id")) or None,
        answers.retry_after(answer, now),
        _dead_since(said) if answer.status == 410 else None,
    )


def _outcome(status: int, reason: str) -> Outcome:
    if status == 200:
        return "sent"
    if status == 410 or (status == 400 and reason in _DEAD_TOKENS):
        return "dead_token"
    # A refused team, key, certificate or topic concerns every push.
    if status == 403 or (status == 400 and reason in _REFUSED_TOPIC):
        return "auth"
    return "permanent" if 400 <= status < 500 and status != 429 else "retry"


def _dead_since(said: dict[str, Any]) -> datetime | None:
    """Return the moment that Apple gives in milliseconds."""
    milliseconds = said.get("timestamp")
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except (OverflowError, ValueError):
        return None


def _team_token(key: str, *, key_id: str, team_id: str, clock: Clock) -> SharedToken:
    """Return Apple's token of a team."""
    import jwt

    private = _private_key(key)
    signed_at = renewed_at = -math.inf

    def sign() -> str:
        nonlocal signed_at, renewed_at
        now = clock.monotonic()
        # To sign for the first time is no renewal.
        renewed_at = renewed_at if signed_at == -math.inf else now
        signed_at = now
        claims = {"iss": team_id, "iat": int(clock.now().timestamp())}
        return jwt.encode(claims, private, algorithm="ES256", headers={"kid": key_id})

    return SharedToken(
        sign,
        is_old=lambda: clock.monotonic() - signed_at >= _REUSED_SECONDS,
        may_renew=lambda: clock.monotonic() - renewed_at >= _SOONEST_SECONDS,
    )


def _private_key(key: str) -> EllipticCurvePrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(key.encode(), None)
    except (AttributeError, TypeError, ValueError, UnsupportedAlgorithm):
        private = None
    if not isinstance(private, EllipticCurvePrivateKey) or not isinstance(private.curve, SECP256R1):
        # Without its cause, which could show a part of the key.
        remedy = "Give the text of the .p8 file that Apple offered for download, without a password."
        raise ConfigurationError("key: is not a P-256 private key in PEM", field="key", remedy=remedy) from None
    return private
