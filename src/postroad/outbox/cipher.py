"""Payloads that only the dispatcher can read: AES-256-GCM, sealed for one row."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from postroad.errors import ConfigurationError, Undecryptable
from postroad.events import DomainEvent

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_OPEN_TO_OTHERS: Final = 0o077
_SEAL: Final = "$enc"


class _KeyFile(msgspec.Struct):
    current: str
    keys: dict[str, str]


class AesGcmCipher:
    """Seals payloads with the current key and opens them with any key it was given."""

    def __init__(self, keys: Mapping[str, bytes], current: str) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for kid, key in keys.items():
            if len(key) != _KEY_BYTES:
                raise ConfigurationError(
                    f"keys: {kid!r} has not {_KEY_BYTES} bytes", field="keys", remedy="Use os.urandom(32)."
                )
        if current not in keys:
            raise ConfigurationError(f"current: {current!r} is none of the keys", field="current")
        self.current = current
        self._keys = {kid: AESGCM(key) for kid, key in keys.items()}

    @classmethod
    def from_file(cls, path: str | Path) -> AesGcmCipher:
        """The keys of a JSON file `{"current": kid, "keys": {kid: base64}}` that nobody else may read."""
        try:
            with Path(path).open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                data = file.read()
        except OSError as error:
            raise ConfigurationError(f"key file {path}: {error.strerror}", field="keyfile") from error
        if mode & _OPEN_TO_OTHERS:
            raise ConfigurationError(
                f"key file {path}: its mode is {mode & 0o777:04o}, so others may read it; it must be 0600",
                field="keyfile",
                remedy=f"chmod 0600 {path}",
            )
        return cls(*_read(data, path))

    def sealed(self, event: DomainEvent, payload: bytes) -> dict[str, Any]:
        """The event's payload, given as JSON, in the form in which it is stored."""
        nonce = os.urandom(_NONCE_BYTES)
        text = self._keys[self.current].encrypt(nonce, payload, _belongs_to(event))
        return {_SEAL: {"kid": self.current, "n": _written(nonce), "ct": _written(text)}}

    def opened(self, event: DomainEvent) -> DomainEvent:
        """The event with a readable payload; one that was never sealed stays as it is."""
        if not is_sealed(event):
            return event
        seal = event.payload[_SEAL]
        try:
            key = self._keys[seal["kid"]]
            nonce, text = base64.b64decode(seal["n"], validate=True), base64.b64decode(seal["ct"], validate=True)
        except (KeyError, TypeError, ValueError) as error:
            raise Undecryptable(f"no key here is called {_kid(seal)!r}, or the seal is broken") from error
        return replace(event, payload=msgspec.json.decode(_decrypted(key, nonce, text, event)))


def is_sealed(event: DomainEvent) -> bool:
    """Whether the event's payload is a seal."""
    return event.payload.keys() == {_SEAL}


def _decrypted(key: Any, nonce: bytes, text: bytes, event: DomainEvent) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        return bytes(key.decrypt(nonce, text, _belongs_to(event)))
    except (InvalidTag, ValueError) as error:
        raise Undecryptable("the payload was sealed for another event, or changed since") from error


def _belongs_to(event: DomainEvent) -> bytes:
    """What a seal is bound to: moved to another row, it does not open."""
    return f"{event.tenant_id or ''}|{event.type}|{event.event_id}".encode()


def _written(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _kid(seal: object) -> str:
    return str(seal.get("kid"))[:40] if isinstance(seal, dict) else "?"


def _read(data: bytes, path: str | Path) -> tuple[dict[str, bytes], str]:
    try:
        file = msgspec.json.decode(data, type=_KeyFile)
        return {kid: base64.b64decode(key, validate=True) for kid, key in file.keys.items()}, file.current
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        # The cause would show a part of the file, which holds secrets.
        raise ConfigurationError(
            f"key file {path}: is not JSON of the form current, keys with base64 values",
            field="keyfile",
            remedy='Write {"current": "k1", "keys": {"k1": "<base64 of 32 bytes>"}}.',
        ) from None
