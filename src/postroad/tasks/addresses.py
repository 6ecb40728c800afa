"""Where an alert may go: an https address of an allowed host that lies on the public internet."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from postroad.errors import AlertRefused

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
