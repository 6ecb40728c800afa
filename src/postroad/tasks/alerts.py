"""Alerts to Slack: sent to one checked address, without redirects and proxies, and never in the way of anything."""

from __future__ import annotations

import http.client
import ipaddress
import json
import re
import socket
import ssl
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from postroad.errors import AlertRefused
from postroad.settings import alerts_allow_loopback, slack_webhook_url

_LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_PRINTABLE = re.compile(r"[!-~]{1,2000}")


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address, taken apart. It is never shown: whoever knows it can post."""

    host: str
    port: int
    path: str
    secure: bool


def check_webhook(url: object, *, allowed_hosts: Collection[str], allow_loopback: bool) -> Webhook:
    """Take the address apart, or refuse it without repeating it."""
    if not isinstance(url, str) or _PRINTABLE.fullmatch(url) is None:
        raise AlertRefused("webhook_url: is not an address", field="webhook_url")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise AlertRefused("webhook_url: its host or port is none", field="webhook_url") from None
    if port == 0:
        raise AlertRefused("webhook_url: its port is no port", field="webhook_url")
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        raise AlertRefused("webhook_url: names a user, which is how one host is dressed up as another")
    host = (parts.hostname or "").lower()
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if allow_loopback and parts.scheme == "http" and host == _LOOPBACK:
        return Webhook(host, port or 80, path, secure=False)
    if parts.scheme != "https":
        raise AlertRefused("webhook_url: is not https", field="webhook_url")
    if _HOST.fullmatch(host) is None or host not in allowed_hosts:
        raise AlertRefused("webhook_url: its host is not one of the allowed hosts", field="webhook_url")
    return Webhook(host, port or 443, path, secure=True)


def resolve(webhook: Webhook) -> str:
    """The one address to connect to; `OSError` when there is none, or none that is public."""
    if not webhook.secure:
        return webhook.host
    found = socket.getaddrinfo(webhook.host, webhook.port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    # All of them: a name that also points inside is not one of ours.
    if not addresses or not all(ipaddress.ip_address(address).is_global for address in addresses):
        raise OSError("the host has no public address")
    return addresses[0]


ALLOWED_HOSTS = ("hooks.slack.com",)
_MOST_BYTES = 65_536
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class AlertResult(msgspec.Struct, frozen=True):
    """Whether the alert was taken, what the receiver answered, and why not."""

    ok: bool
    status: int | None = None
    reason: str | None = None


class SlackAlerts:
    """Sends lines of text to a webhook of Slack."""

    def __init__(
        self,
        webhook_url: str | None = None,
        *,
        allowed_hosts: Collection[str] = ALLOWED_HOSTS,
        timeout: float = 5.0,
        allow_loopback: bool = False,
    ) -> None:
        url = webhook_url or slack_webhook_url()
        if url is None:
            raise AlertRefused("webhook_url: none is given", field="webhook_url", remedy="Set SLACK_WEBHOOK_URL.")
        loopback = allow_loopback or alerts_allow_loopback()
        self._webhook = check_webhook(url, allowed_hosts=allowed_hosts, allow_loopback=loopback)
        self._timeout = timeout

    def send(self, text: str) -> AlertResult:
        """Send the text; whatever goes wrong is the result, and the address is in none of it."""
        body = json.dumps({"text": text.translate(_ESCAPES)}).encode()
        try:
            status = _post(self._webhook, resolve(self._webhook), body, self._timeout)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return AlertResult(False, None, _reason(error))
        ok = 200 <= status < 300
        return AlertResult(ok, status, None if ok else f"the receiver answered {status}")


def _post(webhook: Webhook, address: str, body: bytes, timeout: float) -> int:
    """Post to the address that was looked at: the name is not looked up a second time."""
    connection = http.client.HTTPConnection(webhook.host, webhook.port, timeout=timeout)
    plain = socket.create_connection((address, webhook.port), timeout)
    try:
        connection.sock = _secured(plain, webhook) if webhook.secure else plain
        connection.request("POST", webhook.path, body, {"Content-Type": "application/json", "Connection": "close"})
        answer = connection.getresponse()
        answer.read(_MOST_BYTES)
        return answer.status
    finally:
        connection.close()
        plain.close()


def _secured(plain: socket.socket, webhook: Webhook) -> socket.socket:
    return ssl.create_default_context().wrap_socket(plain, server_hostname=webhook.host)


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
