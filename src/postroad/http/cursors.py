"""Cursors: where a list goes on, sealed for the list that gave them out."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from postroad.errors import InvalidCursor

_SEAL_BYTES = 16


class Cursors:
    """Seals positions so that a forged, shortened or foreign cursor is recognised."""

    def __init__(self, secret: str) -> None:
        self._key = hmac.digest(secret.encode(), b"postroad cursors", "sha256")

    def seal(self, of: str, position: str) -> str:
        """The cursor for a position in the list `of`, which names its route and filters."""
        data = position.encode()
        return base64.urlsafe_b64encode(self._mac(of, data) + data).rstrip(b"=").decode()

    def open(self, of: str, cursor: str) -> str:
        """The position that was sealed for this list, or `InvalidCursor`."""
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _refused() from None
        seal, data = raw[:_SEAL_BYTES], raw[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._mac(of, data)):
            raise _refused()
        return data.decode()

    def _mac(self, of: str, data: bytes) -> bytes:
        return hmac.new(self._key, of.encode() + b"\0" + data, hashlib.sha256).digest()[:_SEAL_BYTES]


def _refused() -> InvalidCursor:
    return InvalidCursor("cursor: this list did not give it out", field="cursor")
