"""Access tokens of a service account, fetched by google-auth over httpx."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx
from google.auth import exceptions, transport
from google.oauth2 import service_account

from postroad.errors import ConfigurationError
from postroad.notifications.senders.addresses import trusting
from postroad.notifications.senders.tokens import AccessTokens

_SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"


def service_account_tokens(path: str | Path, ca_file: str | Path | None, timeout: float) -> AccessTokens:
    """Tokens of the service account of this file, which says itself where they are fetched."""
    try:
        account = service_account.Credentials.from_service_account_file(str(path), scopes=[_SCOPE])  # type: ignore[no-untyped-call]  # google-auth has no types here
    except (OSError, ValueError, KeyError, TypeError, AttributeError, exceptions.GoogleAuthError):
        # Without a cause: it could show a part of the file, which holds a key.
        raise ConfigurationError(
            f"credentials_file: {path} is not the key file of a service account",
            field="credentials_file",
            remedy="Give the JSON file that Google offered for download, readable by this process.",
        ) from None

    def fetch() -> str:
        with httpx.Client(verify=trusting(ca_file, public=True), timeout=timeout) as client:
            account.refresh(_Request(client))
        return str(account.token)

    return AccessTokens(fetch, lambda: bool(account.expired))


class _Request(transport.Request):
    """google-auth's requests, made by httpx."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> _Response:
        try:
            return _Response(self._client.request(method, url, content=body, headers=headers))
        except httpx.HTTPError as error:
            raise exceptions.TransportError(type(error).__name__, retryable=True) from error  # type: ignore[no-untyped-call]  # google-auth has no types here


class _Response(transport.Response):
    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def data(self) -> bytes:
        return self._response.content
