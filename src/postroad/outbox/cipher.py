"""Encrypted payloads: AES-256-GCM, bound to one event."""

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
SEAL: Final = "$enc"
"""The only key of an encrypted payload."""


class _KeyFile(msgspec.Struct):
    current: str
    keys: dict[str, str]


class AesGcmCipher:
    """Encrypts payloads with the current key and decrypts them with any of the keys.

    Args:
        keys: Keys of 32 bytes by their ids. Keep old keys as long as events that were encrypted with them may arrive.
        current: The id of the key that encrypts new payloads.

    Raises:
        ConfigurationError: A key does not have 32 bytes, or `current` is not among them.

    Example:
        cipher = AesGcmCipher({"2025-08": os.urandom(32)}, current="2025-08")
        outbox = Outbox.postgres(dsn, cipher=cipher)
    """

    def __init__(self, keys: Mapping[str, bytes], current: str) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for kid, key in keys.items():
            if len(key) != _KEY_BYTES:
                raise ConfigurationError(
                    f"keys: {kid!r} does not have {_KEY_BYTES} bytes", field="keys", remedy="Use os.urandom(32)."
                )
        if current not in keys:
            raise ConfigurationError(f"current: {current!r} is not one of the keys", field="current")
        self.current = current
        self._keys = {kid: AESGCM(key) for kid, key in keys.items()}

    @classmethod
    def from_file(cls, path: str | Path) -> AesGcmCipher:
        """Read the keys from the JSON file `path`, `{"current": kid, "keys": {kid: base64}}`, of mode 0600.

        Raises:
            ConfigurationError: The file cannot be read, is readable by others, or holds something else.
        """
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
        try:
            content = msgspec.json.decode(data, type=_KeyFile)
            keys = {kid: base64.b64decode(key, validate=True) for kid, key in content.keys.items()}
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            # The cause would show a part of the file, which holds secrets.
            raise ConfigurationError(
                f"key file {path}: is not JSON with `current` and `keys` in base64",
                field="keyfile",
                remedy='Write {"current": "k1", "keys": {"k1": "<base64 of 32 bytes>"}}.',
            ) from None
        return cls(keys, content.current)

    def sealed(self, event: DomainEvent, payload: bytes) -> dict[str, Any]:
        """Return the `payload` of `event`, which is given as JSON, encrypted and in the form in which it is stored."""
        nonce = os.urandom(_NONCE_BYTES)
        text = self._keys[self.current].encrypt(nonce, payload, _belongs_to(event))
        return {
            SEAL: {"kid": self.current, "n": base64.b64encode(nonce).decode(), "ct": base64.b64encode(text).decode()}
        }

    def opened(self, event: DomainEvent) -> DomainEvent:
        """Return `event` with its payload decrypted; raise Undecryptable if none of the keys fits."""
        if event.payload.keys() != {SEAL}:
            return event
        seal = event.payload[SEAL]
        from cryptography.exceptions import InvalidTag

        try:
            key = self._keys[seal["kid"]]
            nonce, text = base64.b64decode(seal["n"], validate=True), base64.b64decode(seal["ct"], validate=True)
        except (KeyError, TypeError, ValueError) as error:
            kid = str(seal.get("kid"))[:40] if isinstance(seal, dict) else "?"
            raise Undecryptable(f"there is no key with the id {kid!r}, or the encrypted payload is damaged") from error
        try:
            payload = key.decrypt(nonce, text, _belongs_to(event))
        except (InvalidTag, ValueError) as error:
            raise Undecryptable("the payload was encrypted for another event, or has been changed") from error
        return replace(event, payload=msgspec.json.decode(payload))


def _belongs_to(event: DomainEvent) -> bytes:
    """Return what the payload is bound to: copied to another event, it cannot be decrypted."""
    return f"{event.tenant_id or ''}|{event.type}|{event.event_id}".encode()
