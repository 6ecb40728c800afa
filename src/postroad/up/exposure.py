"""Who can reach the server: beyond this machine only with a strong token and named hosts."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from postroad.errors import ConfigurationError
from postroad.http.tokens import read_secret
from postroad.settings import Settings

STRONG_TOKEN = 32


def check_exposure(settings: Settings, *, operator_token: str | None) -> None:
    """Refuse to listen beyond loopback without a token set by the operator and `allowed_hosts`."""
    if is_loopback(settings.host):
        return
    if operator_token is None or len(operator_token) < STRONG_TOKEN:
        raise ConfigurationError(
            f"host: {settings.host} is reachable from outside, and no token of {STRONG_TOKEN} characters is set",
            field="host",
            remedy="Set POSTROAD_TOKEN or token_file, or listen on 127.0.0.1.",
        )
    if not settings.allowed_hosts:
        raise ConfigurationError(
            f"host: {settings.host} is reachable from outside, and allowed_hosts is empty",
            field="allowed_hosts",
            remedy="Name the hosts that clients use in POSTROAD_ALLOWED_HOSTS, or listen on 127.0.0.1.",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def token_of(settings: Settings) -> str | None:
    """The admin token that the operator set; None when one is made here."""
    if settings.token is not None:
        return settings.token
    return None if settings.token_file is None else read_secret(Path(settings.token_file))
