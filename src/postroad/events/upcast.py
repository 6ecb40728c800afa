"""Lifts payloads of older versions, one version at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from postroad.errors import InvalidInput, InvalidMessage
from postroad.events.ids import Upcaster, checked_version, identity_of


def upcast(cls: type, *, from_version: int) -> Callable[[Upcaster], Upcaster]:
    """Register a function that lifts a payload of `from_version` to the next version of the class."""
    if not isinstance(cls, type):
        raise InvalidInput(f"cls: {cls!r} is not a class", field="cls", remedy="Pass the event's class itself.")
    identity = identity_of(cls)
    _refuse_gaps(cls.__qualname__, checked_version(from_version), identity.version, identity.upcasters)

    def register(function: Upcaster) -> Upcaster:
        if not callable(function):
            raise InvalidInput(f"upcast: {function!r} is not a function", field="function")
        identity.upcasters[from_version] = function
        return function

    return register


def lifted(cls: type, payload: dict[str, Any], version: int) -> dict[str, Any]:
    """The payload as the class's own version has it; the given one is left as it was."""
    identity = identity_of(cls)
    if version > identity.version:
        raise InvalidMessage(
            f"version: {version} is newer than version {identity.version} of {cls.__qualname__} known here",
            field="version",
            remedy="Deploy the newer class to this process, then redrive the message.",
        )
    current = copy.deepcopy(payload)
    for step in range(version, identity.version):
        current = _step(cls, identity.upcasters.get(step), current, step)
    return current


def _step(cls: type, upcaster: Upcaster | None, payload: dict[str, Any], version: int) -> dict[str, Any]:
    if upcaster is None:
        raise InvalidMessage(
            f"version: nothing lifts {cls.__qualname__} from version {version} to {version + 1}",
            field="version",
            remedy=f"Register @upcast({cls.__name__}, from_version={version}).",
        )
    try:
        result = upcaster(payload)
    except Exception as error:
        raise _failed(cls, version, f"{type(error).__name__}: {error}") from error
    if not isinstance(result, dict):
        raise _failed(cls, version, f"it returned {type(result).__name__} in place of a dict")
    return result


def _failed(cls: type, version: int, why: str) -> InvalidMessage:
    return InvalidMessage(
        f"payload: the upcast of {cls.__qualname__} from version {version} failed: {why}", field="payload"
    )


def _refuse_gaps(name: str, from_version: int, version: int, known: dict[int, Upcaster]) -> None:
    if from_version >= version:
        why = f"{name} is at version {version}, so there is nothing to lift from version {from_version}"
    elif from_version in known:
        why = f"{name} already has an upcast from version {from_version}"
    elif known and not min(known) - 1 <= from_version <= max(known) + 1:
        missing = max(known) + 1 if from_version > max(known) else min(known) - 1
        why = f"{name} would have a gap: register the upcast from version {missing} first"
    else:
        return
    raise InvalidInput(
        f"from_version: {why}",
        field="from_version",
        remedy="Each version before the class's own is lifted by exactly one upcast, without gaps.",
    )
