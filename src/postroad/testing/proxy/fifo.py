"""FIFO queues and topics as AWS has them: deduplication that survives a delete, and sequences that grow."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final

from postroad.testing.proxy.wire import (
    Answer,
    Batch,
    Forward,
    Request,
    json_answer,
    publish_batch_answer,
    xml_answer,
    xml_of,
)

DEDUP_SECONDS: Final = 300.0
_MOST_KNOWN: Final = 200_000
_FIRST_SEQUENCE: Final = 18_849_496_460_467_696_128
_MEMBER: Final = re.compile(r"<member>(.*?)</member>", re.DOTALL)
_FIELD: Final = re.compile(r"<(\w+)>([^<]*)</\1>")
Fields = Mapping[str, Any]


class Bounded(OrderedDict[Any, Any]):
    """A dictionary that forgets what was stored first when it holds too much."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        if len(self) > _MOST_KNOWN:
            self.popitem(last=False)


class Fifo:
    """What AWS remembers of FIFO queues and topics, each known by its name or ARN."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._memory: dict[str, OrderedDict[str | None, tuple[float, Fields]]] = defaultdict(OrderedDict)
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._sequences: dict[tuple[str, str], str] = Bounded()
        self._counter = count(_FIRST_SEQUENCE, 256)

    def forget(self, where: str) -> None:
        self._memory.pop(where, None)

    def sequence(self, where: str, message_id: str) -> str:
        """Return the sequence number of a message; one that is new here gets the next."""
        if (where, message_id) not in self._sequences:
            self._sequences[where, message_id] = str(next(self._counter))
        return self._sequences[where, message_id]

    def send(self, where: str, key: str | None, entry: Fields, request: Request, forward: Forward) -> Answer:
        """Send or publish one message, unless an equal one was within the last five minutes."""
        with self._locks[where]:
            sent = self._remembered(where, key)
            if sent is None:
                answer = forward(request)
                found = answer.document if request.is_json else dict(_FIELD.findall(answer.body.decode()))
                if answer.status != 200 or "MessageId" not in found:
                    return answer
                sent = self._remember(where, key, found)
        if request.is_json:
            return json_answer({**sent, "MD5OfMessageBody": _md5(entry["MessageBody"])})
        told = xml_of({"PublishResult": xml_of(_named(sent)), "ResponseMetadata": ""}, escaped=True)
        return xml_answer(xml_of({"PublishResponse": told}, escaped=True))

    def send_batch(
        self, where: str, keys: Sequence[str | None], entries: Sequence[Fields], batch: Batch, forward: Forward
    ) -> Answer:
        """Send or publish the entries of a batch that are not equal to an earlier one, and answer for all."""
        with self._locks[where]:
            new = [n for n, key in enumerate(keys) if key is None or self._is_new(where, key, keys[:n])]
            answer = forward(batch.keeping(new)) if new else None
            if answer is not None and answer.status != 200:
                return answer
            told = {} if answer is None else _results(answer)
            outcomes: dict[int, Fields] = {}
            for n, (key, own) in enumerate(zip(keys, batch.ids, strict=True)):
                if n in new and "MessageId" in told.get(own, {}):
                    md5s = {name: value for name, value in told[own].items() if name.startswith("MD5")}
                    outcomes[n] = md5s | self._remember(where, key, told[own])
                else:
                    # A copy of an entry that failed has failed too.
                    earlier = next((outcomes[m] for m in range(n) if keys[m] == key), {})
                    outcomes[n] = told.get(own) or self._remembered(where, key) or earlier
        return _batch_answer(batch, entries, [outcomes[n] for n in range(len(keys))])

    def _is_new(self, where: str, key: str, before: Sequence[str | None]) -> bool:
        return key not in before and self._remembered(where, key) is None

    def _remembered(self, where: str, key: str | None) -> Fields | None:
        """Return what the first message with this key got within the last five minutes."""
        memory, now = self._memory[where], self._monotonic()
        while memory and next(iter(memory.values()))[0] <= now:
            memory.popitem(last=False)
        return memory[key][1] if key in memory else None

    def _remember(self, where: str, key: str | None, result: Fields) -> dict[str, Any]:
        message_id = result["MessageId"]
        sent = {"MessageId": message_id, "SequenceNumber": self.sequence(where, message_id)}
        if key is not None:
            self._memory[where][key] = self._monotonic() + DEDUP_SECONDS, sent
        return sent


def dedup_key(entry: Fields, body: str, settings: Mapping[str, str]) -> str | None:
    """Return what equal messages share; None if there is nothing of the kind, which AWS and emulators refuse."""
    dedup_id = entry.get("MessageDeduplicationId")
    if not dedup_id and settings.get("ContentBasedDeduplication") != "true":
        return None
    scope = settings.get("DeduplicationScope") or settings.get("FifoThroughputScope") or ""
    group = entry.get("MessageGroupId") if scope.lower() == "messagegroup" else None
    return json.dumps([group, dedup_id or hashlib.sha256(body.encode()).hexdigest()])


def _results(answer: Answer) -> dict[str, Fields]:
    if answer.document:
        return {each["Id"]: each for name in ("Successful", "Failed") for each in answer.document.get(name) or ()}
    members = (dict(_FIELD.findall(member)) for member in _MEMBER.findall(answer.body.decode()))
    return {member["Id"]: member for member in members}


def _batch_answer(batch: Batch, entries: Sequence[Fields], outcomes: Sequence[Fields]) -> Answer:
    sent: list[Fields] = []
    failed: list[Fields] = []
    for own, entry, outcome in zip(batch.ids, entries, outcomes, strict=True):
        told = {**outcome, "Id": own}
        if "MessageId" in told and "MessageBody" in entry:
            told["MD5OfMessageBody"] = _md5(entry["MessageBody"])
        (sent if "MessageId" in told else failed).append(told)
    if "MessageBody" in entries[0]:
        return json_answer({"Successful": sent, "Failed": failed})
    return publish_batch_answer("", successful=_members(sent), failed=_members(failed))


def _members(entries: Sequence[Fields]) -> str:
    return "".join(xml_of({"member": xml_of(_named(each))}, escaped=True) for each in entries)


def _named(fields: Fields) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items() if not name.startswith("MD5")}


def _md5(body: str) -> str:
    return hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()
