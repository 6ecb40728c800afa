"""A disk that refuses to write: what was not stored raises, nothing is lost, and the process goes on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from postroad import Backend, OutgoingMessage, Queue, QueueSpec, connect
from postroad.errors import PostroadError, StorageFull, Unavailable

REFUSALS: dict[str, tuple[type[apsw.Error], type[PostroadError]]] = {
    "full": (apsw.FullError, StorageFull),
    "write error": (apsw.IOError, Unavailable),
    "read-only": (apsw.ReadOnlyError, Unavailable),
}


class _Disk(apsw.VFS):
    """SQLite's files, which can no longer be written once `refusal` is set."""

    def __init__(self) -> None:
        self.refusal: type[apsw.Error] | None = None
        super().__init__("refusing", base="unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: _Disk, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._disk.refusal is not None:
            raise self._disk.refusal("refused by the test")
        super().xWrite(data, offset)


@pytest.fixture
def disk() -> Iterator[_Disk]:
    disk = _Disk()
    yield disk
    apsw.set_default_vfs("unix")
    disk.unregister()


@pytest.fixture
def backend(disk: _Disk, tmp_path: Path) -> Iterator[Backend]:
    with connect(f"sqlite:///{tmp_path}/p.db") as backend:
        yield backend
        disk.refusal = None


def _take_all(queue: Queue) -> set[bytes]:
    found = set()
    while deliveries := queue.receive(max_messages=10):
        found |= {each.body for each in deliveries}
        assert all(result.ok for result in queue.ack(deliveries))
    return found


@pytest.mark.parametrize(("refusal", "expected"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_send_that_is_not_stored_raises_and_the_same_process_goes_on_when_it_can(
    disk: _Disk, backend: Backend, tmp_path: Path, refusal: type[apsw.Error], expected: type[PostroadError]
) -> None:
    queue = backend.create_queue(QueueSpec("jobs"))
    for number in range(5):
        assert queue.send([OutgoingMessage(f"before {number}")])[0].ok

    disk.refusal = refusal
    for _ in range(3):
        with pytest.raises(expected, match=r"p\.db"):
            queue.send([OutgoingMessage("refused")])
    # What was acknowledged can be read meanwhile.
    shown = {message.body for message in queue.peek()}
    disk.refusal = None
    assert queue.send([OutgoingMessage("after")])[0].ok

    before = {f"before {number}".encode() for number in range(5)}
    assert shown == before
    assert _take_all(queue) == {*before, b"after"}


@pytest.mark.parametrize(("refusal", "expected"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_batch_and_a_transaction_are_refused_whole(
    disk: _Disk, backend: Backend, refusal: type[apsw.Error], expected: type[PostroadError]
) -> None:
    queue, items = backend.create_queue(QueueSpec("jobs")), backend.items()

    disk.refusal = refusal
    with pytest.raises(expected):
        queue.send([OutgoingMessage(str(number)) for number in range(10)])
    with pytest.raises(expected), backend.transaction():
        queue.send([OutgoingMessage("in a transaction")])
        items.put("t/k", b"v")
    disk.refusal = None

    assert queue.receive() == []
    assert items.get("t/k") is None


@pytest.mark.parametrize(("refusal", "expected"), REFUSALS.values(), ids=REFUSALS.keys())
def test_an_ack_that_is_not_stored_leaves_the_message_to_be_acked_later(
    disk: _Disk, backend: Backend, refusal: type[apsw.Error], expected: type[PostroadError]
) -> None:
    queue = backend.create_queue(QueueSpec("jobs"))
    queue.send([OutgoingMessage("one")])
    held = queue.receive()

    disk.refusal = refusal
    with pytest.raises(expected):
        queue.ack(held)
    disk.refusal = None

    assert queue.ack(held)[0].ok
    assert queue.stats().in_flight == 0
