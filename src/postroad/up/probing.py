"""Asking the server whether it is ready, as anybody else would."""

from __future__ import annotations

import asyncio
from typing import Any

_ASK_SECONDS = 2.0
_REQUEST = b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


async def answers_ready(address: Any) -> bool:
    """Whether `GET /ready` at the address answers 200."""
    try:
        return await asyncio.wait_for(_ask(address), _ASK_SECONDS)
    except (OSError, TimeoutError):
        return False


async def _ask(address: Any) -> bool:
    reader, writer = await asyncio.open_connection(_reachable(address[0]), address[1])
    try:
        writer.write(_REQUEST)
        return (await reader.readline()).split(b" ")[1:2] == [b"200"]
    finally:
        writer.close()


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # compared, not bound
