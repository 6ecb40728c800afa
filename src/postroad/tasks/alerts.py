"""Alerts to Slack: sent to one checked address, without redirects and proxies, and never in the way of anything."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Collection

import msgspec

from postroad.errors import AlertRefused
from postroad.settings import alerts_allow_loopback, slack_webhook_url
from postroad.tasks.addresses import Webhook, check_webhook, resolve

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
