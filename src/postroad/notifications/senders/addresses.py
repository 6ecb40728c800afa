"""Where a provider is, and how its certificate is checked."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import httpx

from postroad.errors import ConfigurationError

_LOCAL_NAMES: Final = ("localhost",)


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider's address, whom to believe that it is the provider, and whether it may speak HTTP/1.1."""

    base_url: str
    trust: ssl.SSLContext
    http1: bool

    def transport(self, **options: Any) -> httpx.AsyncHTTPTransport:
        """A connection to this provider that speaks HTTP/2 and follows nobody elsewhere."""
        return httpx.AsyncHTTPTransport(
            verify=self.trust, http1=self.http1, http2=True, trust_env=False, proxy=proxy_for(self.base_url), **options
        )


def provider(base_url: str, ca_file: str | Path | None, *, http1: bool) -> Provider:
    """The provider at this address; ConfigurationError names what cannot be used."""
    return Provider(_checked_url(base_url), trusting(ca_file), http1)


def trusting(ca_file: str | Path | None, *, public: bool = False) -> ssl.SSLContext:
    """Who is believed: the authorities of `ca_file`, or the public ones without it; with `public` both."""
    everybody = ca_file is None or public
    context = httpx.create_ssl_context() if everybody else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, TypeError) as error:
            raise ConfigurationError(f"ca_file: {ca_file} holds no certificates", field="ca_file") from error
    return context


def _checked_url(base_url: object) -> str:
    try:
        url = httpx.URL(base_url if isinstance(base_url, str) else "")
    except httpx.InvalidURL:
        url = httpx.URL("")
    plain = url.scheme == "http" and _is_local(url.host)
    if not url.host or url.userinfo or url.query or url.fragment or not (plain or url.scheme == "https"):
        raise ConfigurationError(
            "base_url: is not an https address without user, query and fragment",
            field="base_url",
            remedy="Give the provider's own address; http is for servers of this machine only.",
        )
    return str(url).rstrip("/")


def proxy_for(base_url: str) -> str | None:
    """The proxy that the environment names for this address."""
    url = httpx.URL(base_url)
    if _is_local(url.host) or proxy_bypass(url.host):
        return None
    named = getproxies()
    return named.get(url.scheme) or named.get("all")


def _is_local(host: str) -> bool:
    try:
        return host in _LOCAL_NAMES or ip_address(host).is_loopback
    except ValueError:
        return False
