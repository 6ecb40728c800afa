"""What all conformance suites share: the base class, checks of refusals, and JSON that every port carries unchanged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import pytest

from postroad.errors import InvalidInput
from postroad.queues import Queue

_DEEP: Final = 60

PLAIN: Final = (
    '{"a":1}',
    '  { "a" :\r\n\t[ ] } \n',
    '{"é漢😀":"e\u0301\u200d\u202e\ufeff"}',
    '"\u2028\u2029\u0085\u007f\u009f\ufffd\ufdd0"',
    r'"\u0000\u0001\u001f\b\f\n\r\t\\\"\/"',
    r'"\ufffe\uffff\ufdd0\u2028\ud83d\ude00"',
    "[1,1.0,-0.0,0.1,1e22,1E-7,1e300,12345678901234567890123456789012345678901234567890,true,null]",
    '{"a":1,"a":2,"":{"":[[],{}]}}',
    '"<&>%s{0}"',
    "{" + '"in":{' * _DEEP + "}" * _DEEP + "}",
    '{"Type":"Notification","TopicArn":"arn:aws:sns:us-east-1:123456789012:news","Message":"inner"}',
    '{"detail-type":"x","source":"y","detail":{"body":"inner","attributes":{}}}',
    '{"detail-type":"x","source":"y","detail":{"event_type":"Placed","payload":{}}}',
    '{"postroad_blob":{"key":"overflow/a","size":1}}',
    '"' + "x" * 100_000 + '"',
)
"""Texts of printable characters, and of others as escapes: every port accepts them."""

DOUBTFUL: Final = (
    *('"\ufffe"', '"\uffff"', '"a\x00b"', '"a\x01b\x1f"', '"\x0b\x0c"', r'"\ud800"', r'"\udfff\ud800"'),
    *('"\ud800"', '"\udfff\ud800"', "\ufeff{}"),
)
"""Texts with characters that a port may refuse, as SQS does, but not change; some cannot be encoded."""


class Suite:
    """The base of every conformance suite.

    An adapter's test class overrides the fixture `ground`. A test named in `known_differences` is skipped with its
    reason.

    Example:
        class TestNatsQueues(QueueConformance):
            known_differences = {"test_an_empty_batch_changes_nothing": "the server counts every call"}

            @pytest.fixture
            def ground(self) -> QueueFixture:
                return QueueFixture(queues=NatsQueues())
    """

    known_differences: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in cls.known_differences:
            if not name.startswith("test_") or not callable(getattr(cls, name, None)):
                raise TypeError(f"{cls.__name__}.known_differences: {name!r} is not a test of this suite")

    @pytest.fixture(autouse=True)
    def _skip_known_differences(self, request: pytest.FixtureRequest) -> None:
        reason = self.known_differences.get(request.node.originalname)
        if reason is not None:
            pytest.skip(f"known to differ: {reason}")

    @pytest.fixture
    def ground(self) -> Any:
        """Override this with the fixture class of the suite and the adapter under test."""
        raise NotImplementedError


@contextmanager
def refuses(error: type[Any], field: str, match: str | None = None, empty: Queue | None = None) -> Iterator[None]:
    """Fail unless the block raises this error for this field and leaves the queue empty."""
    with pytest.raises(error, match=match) as refused:
        yield
    assert refused.value.field == field
    assert empty is None or empty.receive() == []


def all_refuse(error: type[Any], field: str, *attempts: Callable[[], object], match: str | None = None) -> None:
    """Fail unless each of the attempts raises this error for this field."""
    for attempt in attempts:
        with refuses(error, field, match):
            attempt()


def cases(values: Mapping[str, Sequence[Any]]) -> list[tuple[str, Any]]:
    """Return each field with each of its values, to parametrize a test."""
    return [(field, value) for field, each in values.items() for value in each]


def needs(condition: object, otherwise: str) -> None:
    """Skip the test for this reason unless the condition is true."""
    if not condition:
        pytest.skip(otherwise)


def accepted(send: Callable[[str], object]) -> list[str]:
    """Send all plain and doubtful texts; return those that were not refused."""
    sent = []
    for text in (*PLAIN, *DOUBTFUL):
        try:
            send(text)
            sent.append(text)
        except InvalidInput:
            assert text not in PLAIN, f"{text[:80]!r} is refused"
    return sent


def json_bytes() -> list[bytes]:
    """Return all plain and doubtful texts for a port that carries bytes, surrogates included."""
    return [text.encode("utf-8", "surrogatepass") for text in (*PLAIN, *DOUBTFUL)]


@contextmanager
def soon(act: Callable[[], object]) -> Iterator[None]:
    """Do something on another thread while the block waits for it."""
    timer = threading.Timer(0.2, act)
    timer.start()
    try:
        yield
    finally:
        timer.join()
