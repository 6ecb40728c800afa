"""The address of a provider, how its certificate is checked, and the proxy on the way."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.request import getproxies, proxy_bypass

import httpx

from postroad.errors import ConfigurationError

# Below the 350 seconds after which load balancers and NAT gateways of AWS drop idle connections silently.
IDLE_SECONDS: Final = 300.0
_NEXT_ADDRESS_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider's address, the authorities to trust, and whether it may speak HTTP/1.1."""

    base_url: str
    trust: ssl.SSLContext
    http1: bool

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection that offers HTTP/2, through the proxy that the environment names for it."""
        url = httpx.URL(self.base_url)
        is_secure = url.scheme == "https"
        port = url.port or (443 if is_secure else 80)
        self.trust.set_alpn_protocols(["h2", "http/1.1"] if self.http1 else ["h2"])
        proxy = proxy_for(self.base_url)
        if proxy is None:
            trust = self.trust if is_secure else None
            return await asyncio.open_connection(url.host, port, ssl=trust, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS)
        reader, writer = await _tunnel(proxy, url.host, port)
        await writer.start_tls(self.trust, server_hostname=url.host)
        return reader, writer

    def http1_transport(self) -> httpx.AsyncHTTPTransport:
        limits = httpx.Limits(max_connections=None, keepalive_expiry=IDLE_SECONDS)
        return httpx.AsyncHTTPTransport(
            verify=self.trust, trust_env=False, proxy=proxy_for(self.base_url), limits=limits
        )


def provider(base_url: str, ca_file: str | Path | None, *, http1: bool) -> Provider:
    """Return the provider at this address; raise ConfigurationError for what cannot be used."""
    return Provider(_checked_url(base_url), trusting(ca_file), http1)


def trusting(ca_file: str | Path | None, *, public: bool = False) -> ssl.SSLContext:
    """Trust the authorities of `ca_file`, or the public ones without it; both if `public`."""
    context = httpx.create_ssl_context() if ca_file is None or public else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
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
            remedy="Give the provider's own address; http is only for servers on this machine.",
        )
    return str(url).rstrip("/")


def proxy_for(base_url: str) -> str | None:
    """Return the proxy that the environment names for this address."""
    url = httpx.URL(base_url)
    if _is_local(url.host) or proxy_bypass(url.host):
        return None
    named = getproxies()
    return named.get(url.scheme) or named.get("all")


async def _tunnel(proxy: str, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    named = httpx.Proxy(proxy)
    trust = httpx.create_ssl_context() if named.url.scheme == "https" else None
    default_port = 443 if trust else 80
    reader, writer = await asyncio.open_connection(named.url.host, named.url.port or default_port, ssl=trust)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    auth = b":".join(named.raw_auth or ())
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    lines += [f"Proxy-Authorization: Basic {b64encode(auth).decode()}"] if auth else []
    writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    if answer.split(maxsplit=2)[1:2] != [b"200"]:
        writer.close()
        raise ConnectionError("the proxy does not connect to the provider")
    return reader, writer


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
