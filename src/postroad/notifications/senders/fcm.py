"""Pushes to Google's devices: FCM v1 with the access token of a project."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self

import msgspec

from postroad.arguments import SecondsAboveZero, check
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError
from postroad.notifications.devices import Outcome, TokenResult
from postroad.notifications.messages import PushNotification, checked_token
from postroad.notifications.senders import answers
from postroad.notifications.senders.answers import Answer, MismatchCounter, SharedToken
from postroad.notifications.senders.apns import aps

_TTL: Final = "86400s"
_SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"
_TOKEN: Final = re.compile(r"[!-~]{1,16384}")


class FCMSender:
    """Sends pushes to devices that are registered with Firebase. All threads share its connection and its token.

    Args:
        project_id: The id of the Firebase project.
        token_provider: Returns an access token. Give this or `credentials_file`.
        credentials_file: The JSON key file of a service account, with which tokens are fetched.
        base_url: The address of FCM; another one for tests.
        ca_file: The authorities to trust instead of the public ones; for tests.
        timeout: Seconds to wait for an answer, by default 10.
        clock: The time; for tests.

    Raises:
        ConfigurationError: An argument cannot be used, or the extra `push` is not installed.

    Example:
        fcm = FCMSender(project_id="chat-1", credentials_file="service-account.json")
    """

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
        self._path = f"/v1/projects/{answers.checked_name(project_id, 'project_id')}/messages:send"
        self._clock = clock
        check(timeout, SecondsAboveZero, "timeout", ConfigurationError)
        with answers.needing_extra():
            from postroad.notifications.senders.addresses import provider
            from postroad.notifications.senders.http2 import ProviderClient
        self._client = ProviderClient(provider(base_url, ca_file, http1=True), timeout=timeout)
        self._mismatches = MismatchCounter("SENDER_ID_MISMATCH")
        if (token_provider is None) == (credentials_file is None):
            raise ConfigurationError(
                "token_provider: give either it or credentials_file, and not both", field="token_provider"
            )
        if token_provider is not None:
            self._tokens = SharedToken(partial(_fetched, token_provider), is_old=lambda: False)
        else:
            self._tokens = _service_account_tokens(str(credentials_file), ca_file, timeout)

    def send(self, push: PushNotification, token: str, *, push_id: str) -> TokenResult:
        """Send `push` to the device `token`. Sent again under the same `push_id`, it replaces the first one."""
        body = _body(push, checked_token(token), answers.collapse_id(push_id))
        try:
            access = self._tokens.current()
            result = self._post(access, body, token)
            if result.status == 401 and (another := self._tokens.instead_of(access)) is not None:
                result = self._post(another, body, token)
        except NoToken as error:
            return TokenResult(token, "retry" if error.passing else "auth", None, error.why)
        return self._mismatches.checked(result)

    def close(self) -> None:
        """Close the connection; safe to repeat."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post(self, access: str, body: bytes, token: str) -> TokenResult:
        headers = {"content-type": "application/json", "authorization": f"Bearer {access}"}
        return _result(self._client.post(self._path, headers, body), token, self._clock.now())


def _body(push: PushNotification, token: str, collapse: str) -> bytes:
    payload = push.payload
    android = {"tag": collapse, "sound": payload.sound, "notification_count": payload.badge}
    android = {name: value for name, value in android.items() if value is not None}
    message = {
        "token": token,
        "notification": {"title": payload.title, "body": payload.body},
        "data": payload.data,
        "android": {"collapse_key": collapse, "ttl": _TTL, "notification": android},
        "apns": {"headers": {"apns-collapse-id": collapse}, "payload": {"aps": aps(payload)}},
        "webpush": {"headers": {"Topic": collapse}, "notification": {"tag": collapse}},
    }
    return msgspec.json.encode({"message": message})


def _result(answer: Answer, token: str, now: datetime) -> TokenResult:
    if answer.status is None:
        return answers.unanswered(answer, token)
    said = answers.document(answer)
    found = said.get("error")
    error = found if isinstance(found, dict) else {}
    code = _code(error)
    return TokenResult(
        token,
        _outcome(answer.status, code, error),
        answer.status,
        code,
        answers.printable(said.get("name")) or None,
        answers.retry_after(answer, now),
    )


def _code(error: dict[str, Any]) -> str:
    """Return FCM's own error code if there is one, else the status that all Google APIs give."""
    codes = [answers.printable(detail.get("errorCode")) for detail in _objects(error.get("details"))]
    return next(filter(None, codes), answers.printable(error.get("status")))


def _outcome(status: int, code: str, error: dict[str, Any]) -> Outcome:
    if status == 200:
        return "sent"
    if (status, code) in ((404, "UNREGISTERED"), (403, "SENDER_ID_MISMATCH")):
        return "dead_token"
    if status == 400 and code == "INVALID_ARGUMENT" and "message.token" in _violations(error):
        return "dead_token"
    # A refused account or project concerns every push.
    if status in (401, 403, 404):
        return "auth"
    return "permanent" if 400 <= status < 500 and status != 429 else "retry"


def _violations(error: dict[str, Any]) -> set[str]:
    details = _objects(error.get("details"))
    return {
        answers.printable(each.get("field")) for detail in details for each in _objects(detail.get("fieldViolations"))
    }


def _objects(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list; none for everything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


class NoToken(Exception):
    """No token could be fetched; `passing` if asking again may help."""

    def __init__(self, why: str, *, passing: bool) -> None:
        super().__init__(why)
        self.why = why
        self.passing = passing


def _fetched(fetch: Callable[[], str]) -> str:
    try:
        token: object = fetch()
    except Exception as error:
        # Only its class: the text of an unknown exception may hold a secret.
        passing = isinstance(error, OSError) or bool(getattr(error, "retryable", False))
        raise NoToken(type(error).__name__, passing=passing) from error
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        raise NoToken("NoUsableToken", passing=False)
    return token


def _service_account_tokens(path: str, ca_file: str | Path | None, timeout: float) -> SharedToken:
    """Return the tokens of the service account of this file, which also says where to fetch them."""
    with answers.needing_extra():
        import httpx
        from google.auth import exceptions
        from google.oauth2 import service_account

        from postroad.notifications.senders.addresses import trusting
    try:
        account = service_account.Credentials.from_service_account_file(path, scopes=[_SCOPE])  # type: ignore[no-untyped-call]  # google-auth has no types here
    except (OSError, ValueError, KeyError, TypeError, AttributeError, exceptions.GoogleAuthError):
        # Without its cause, which could show a part of the file and so of a key.
        raise ConfigurationError(
            f"credentials_file: {path} is not the key file of a service account",
            field="credentials_file",
            remedy="Give the JSON file that Google offered for download, readable by this process.",
        ) from None

    def fetch() -> str:
        with httpx.Client(verify=trusting(ca_file, public=True), timeout=timeout) as client:

            def request(url: str, method: str = "GET", body: Any = None, headers: Any = None, **_: Any) -> Any:
                try:
                    response = client.request(method, url, content=body, headers=headers)
                except httpx.HTTPError as error:
                    raise exceptions.TransportError(type(error).__name__, retryable=True) from error  # type: ignore[no-untyped-call]  # google-auth has no types here
                return SimpleNamespace(status=response.status_code, headers=response.headers, data=response.content)

            account.refresh(request)
        return str(account.token)

    return SharedToken(partial(_fetched, fetch), is_old=lambda: bool(account.expired))
