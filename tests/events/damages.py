"""Messages that no publisher wrote, made by the thousands from one seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.events.journeys import FIELDS, SPLINTERS, VALID

_BRACKETS = [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"":', b"}]")]
_UNITS = [b"1", b"x", b"\\", b'"', b"[],", b'{"a":1},', b"\xf0\x9f\x8e\x89", b"0.", b"-", b" "]
_ENDS = [(b'"', b'"'), (b"[", b"1]"), (b"", b"")]


def hostile_messages(count: int, *, seed: int) -> Iterator[bytes | str]:
    """So many messages, the same for the same seed."""
    chance = Random(seed)
    kinds: list[Callable[[Random], bytes | str]] = [_noise, _damaged, _mistyped, _deep, _long, _other_json]
    return (chance.choice(kinds)(chance) for _ in range(count))


def _noise(chance: Random) -> bytes:
    return chance.randbytes(chance.randrange(200))


def _damaged(chance: Random) -> bytes:
    """A valid message with some bytes changed, cut out, doubled or put in."""
    data = bytearray(VALID)
    for _ in range(chance.randint(1, 4)):
        start = chance.randint(0, len(data))
        end = chance.randint(start, min(len(data), start + 40))
        data[start:end] = chance.choice([chance.randbytes(chance.randint(0, 8)), *SPLINTERS])
    return bytes(data)


def _mistyped(chance: Random) -> bytes:
    """Right JSON with wrong values in the envelope's fields."""
    names = chance.choices([*FIELDS, "version", "session_id", "extra"], k=chance.randint(0, 4))
    return json.dumps({**FIELDS, **{name: _value(chance) for name in names}}).encode()


def _deep(chance: Random) -> bytes:
    """Brackets without measure, closed or not."""
    opening, closing = chance.choice(_BRACKETS)
    levels = int(3_000 * chance.random() ** 4)
    inside = chance.choice([b"", b"1", b'"x"'])
    return _somewhere(chance, opening * levels + inside + closing * chance.choice([levels, chance.randint(0, levels)]))


def _long(chance: Random) -> bytes:
    """Long numbers, texts and lists."""
    before, after = chance.choice(_ENDS)
    return _somewhere(chance, before + chance.choice(_UNITS) * int(1 + 5_000 * chance.random() ** 2) + after)


def _other_json(chance: Random) -> str:
    return json.dumps(_value(chance))


def _somewhere(chance: Random, body: bytes) -> bytes:
    return VALID.replace(b'"MARK"', body) if chance.random() < 0.5 else body


def _value(chance: Random, depth: int = 0) -> Any:
    """Any JSON: a leaf, or up to three values one level deeper."""
    if depth < 3 and chance.random() < 0.3:
        inside = [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
        return inside if chance.random() < 0.5 else {_text(chance): value for value in inside}
    whole = chance.randint(-(2**70), 2**70)
    return chance.choice(
        [None, True, False, whole, chance.randint(-1, 2), chance.uniform(-1e300, 1e300), _text(chance)]
    )


def _text(chance: Random) -> str:
    return "".join(
        chr(chance.choice([chance.randrange(128), chance.randrange(0xD800)])) for _ in range(chance.randrange(9))
    )
