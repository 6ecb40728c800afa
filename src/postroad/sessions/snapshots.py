"""The state of a session as a value that can be written as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self
from uuid import UUID

import msgspec

from postroad.errors import InvalidSnapshot
from postroad.events import Codec, Envelope, checked_bytes, codec

_VERSION = 1
_NO_ID = UUID(int=0)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WrittenValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value of a slice as JSON, with the version of its class, so that an older one can be upcast."""

    type: str
    payload: dict[str, Any]
    version: int = 1


class _Written(msgspec.Struct, frozen=True, tag_field="kind", tag="postroad.snapshot"):
    version: int
    session_id: UUID
    created_at: datetime
    tags: dict[str, str]
    slices: dict[str, list[WrittenValue]]
    applied: dict[str, list[str]]


@dataclass(frozen=True)
class Snapshot:
    """The slices of a session at one moment, by the name of their type, and the steps its reducers had taken.

    Attributes:
        session_id: The session.
        created_at: When it was taken.
        tags: The tags of the session.
        applied: The steps that were taken, by the id of the event.
        codec: Writes and reads the values.
    """

    session_id: UUID
    created_at: datetime
    tags: Mapping[str, str]
    slices: Mapping[str, tuple[object, ...]]
    """The values themselves, or `WrittenValue`s if the snapshot was read from JSON."""
    applied: Mapping[str, tuple[str, ...]]
    codec: Codec = field(default=codec, compare=False, repr=False)

    def to_json(self) -> str:
        """Return the snapshot as JSON; `InvalidMessage` names the field of a value that JSON cannot hold."""
        slices = {name: [self._written(value) for value in values] for name, values in self.slices.items()}
        applied = {event_id: list(steps) for event_id, steps in self.applied.items()}
        written = _Written(_VERSION, self.session_id, self.created_at, dict(self.tags), slices, applied)
        return msgspec.json.encode(written).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the snapshot that `to_json` wrote as `text`, or raise `InvalidSnapshot`. No type is looked up yet."""
        try:
            data = checked_bytes(text, codec.max_bytes)
            found = msgspec.json.decode(data, type=_Written)
        except Exception as error:
            raise InvalidSnapshot(f"not a snapshot: {error}") from error
        if found.version != _VERSION:
            raise InvalidSnapshot(f"version: {found.version} is not the version {_VERSION} that this Postroad reads")
        slices = {name: tuple(values) for name, values in found.slices.items()}
        applied = {event_id: tuple(steps) for event_id, steps in found.applied.items()}
        return cls(found.session_id, found.created_at, found.tags, slices, applied)

    def read(self, reader: Codec) -> dict[type, tuple[object, ...]]:
        """Return the values of each slice, read by `reader`; raise `UnknownEventType` for a type it does not know."""
        return {
            reader.registry.type_of(name): tuple(_value(value, reader) for value in values)
            for name, values in self.slices.items()
        }

    def _written(self, value: object) -> WrittenValue:
        if isinstance(value, WrittenValue):
            return value
        # The id is fixed, because a slice may have an `event_id` of any kind.
        wrapped = self.codec.wrap(value, publisher_id="snapshot", event_id=_NO_ID, created_at=_EPOCH)
        return WrittenValue(wrapped.event_type, wrapped.payload, wrapped.version)


def _value(value: object, reader: Codec) -> object:
    if not isinstance(value, WrittenValue):
        return value
    return reader.unwrap(Envelope(value.type, _NO_ID, _EPOCH, "snapshot", value.payload, version=value.version))
