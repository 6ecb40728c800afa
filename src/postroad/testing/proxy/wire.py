"""Requests and answers of AWS on the wire: their action, their entries, and refusals in the words of each protocol."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode
from xml.sax.saxutils import escape, unescape

_SCOPE: Final = re.compile(r"Credential=[^/,]*/\d+/[^/]*/([^/]+)/aws4_request")
_MEMBERS: Final = "PublishBatchRequestEntries.member"
_MEMBER: Final = re.compile(rf"{_MEMBERS}\.(\d+)\.(.+)")
_OBJECT: Final = re.compile(rb"<Object>.*?<Key>(.*?)</Key>.*?</Object>", re.DOTALL)
_THROTTLED: Final = {
    "dynamodb": (400, "ProvisionedThroughputExceededException"),
    "kinesis": (400, "ProvisionedThroughputExceededException"),
    "s3": (503, "SlowDown"),
    "sns": (429, "Throttled"),
    "sqs": (403, "RequestThrottled"),
}
_INTERNAL: Final = ("InternalError", "injected")
# A changed body has another checksum.
_OF_THE_BODY: Final = ("content-md5", "x-amz-checksum-", "x-amz-sdk-checksum-algorithm", "content-length")


@dataclass(frozen=True)
class Request:
    """A request as a client sent it; `path` has the query too."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @cached_property
    def action(self) -> str:
        """The action of AWS; for S3 and other REST services, method and path."""
        target = self.headers.get("X-Amz-Target")
        if target is not None:
            return target.rpartition(".")[2]
        if "/operation/" in self.path:
            return self.path.rpartition("/")[2]
        return str(self.form.get("Action") or f"{self.method} {self.path}")

    @cached_property
    def service(self) -> str:
        """The service that the request was signed for, such as "sqs"; empty if it was not signed."""
        found = _SCOPE.search(self.headers.get("Authorization", ""))
        return found[1] if found else ""

    @cached_property
    def form(self) -> dict[str, str]:
        if self.headers.get("Content-Type", "").startswith("application/x-www-form-urlencoded"):
            return dict(parse_qsl(self.body.decode(), keep_blank_values=True))
        return dict(parse_qsl(self.path.partition("?")[2], keep_blank_values=True))

    @cached_property
    def document(self) -> dict[str, Any]:
        parsed = json.loads(self.body or b"{}") if self.is_json else {}
        return parsed if isinstance(parsed, dict) else {}

    @property
    def is_json(self) -> bool:
        """Whether the request has an action and a JSON document."""
        return "X-Amz-Target" in self.headers

    def with_body(self, body: bytes) -> Request:
        kept = {name: value for name, value in self.headers.items() if not name.lower().startswith(_OF_THE_BODY)}
        return replace(self, headers=kept, body=body)

    def with_document(self, document: Mapping[str, Any]) -> Request:
        return self.with_body(json.dumps(document).encode())

    def with_form(self, form: Mapping[str, str]) -> Request:
        return self.with_body(urlencode(form).encode())


@dataclass(frozen=True)
class Answer:
    """An answer without the headers of the connection; so many bytes of its body are `missing`."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    missing: int = 0

    @cached_property
    def document(self) -> dict[str, Any]:
        try:
            parsed = json.loads(self.body)
        except ValueError:
            return {}
        return parsed if isinstance(parsed, dict) else {}

    def with_document(self, document: Mapping[str, Any]) -> Answer:
        return replace(self, body=json.dumps(document).encode())


Forward = Callable[[Request], Answer]
Failed = Mapping[int, tuple[str, str] | None]
"""The positions of entries that failed, with code and message if the sender is at fault."""


def json_answer(document: Mapping[str, Any], status: int = 200) -> Answer:
    return Answer(status, (("Content-Type", "application/x-amz-json-1.0"),), json.dumps(document).encode())


def xml_answer(text: str, status: int = 200) -> Answer:
    return Answer(status, (("Content-Type", "text/xml"),), text.encode())


def refusal(request: Request, status: int, code: str, message: str) -> Answer:
    """Return an error in the form that the client expects."""
    if request.is_json:
        return json_answer({"__type": code, "message": message}, status)
    fields = f"<Code>{code}</Code><Message>{escape(message)}</Message>"
    text = f"<Error>{fields}</Error>"
    if "Action" in request.form:
        kind = "Sender" if status < 500 else "Receiver"
        text = f"<ErrorResponse><Error><Type>{kind}</Type>{fields}</Error></ErrorResponse>"
    elif request.service not in ("s3", ""):
        headers = (("Content-Type", "application/json"), ("x-amzn-ErrorType", code))
        return Answer(status, headers, json.dumps({"message": message}).encode())
    return xml_answer(text, status)


def throttled(request: Request) -> Answer:
    """Return the answer of a service that gets too many requests."""
    status, code = _THROTTLED.get(request.service, (400, "ThrottlingException"))
    return refusal(request, status, code, "Rate exceeded")


@dataclass(frozen=True)
class Batch:
    """The entries of a batch request: how to keep some of them, and how to add failed ones to the answer."""

    ids: Sequence[str]
    keeping: Callable[[Collection[int]], Request]
    failing: Callable[[Failed, Answer | None], Answer]

    def split(self, failed: Failed, forward: Forward) -> Answer:
        """Forward all entries but the failed ones, and return what the client is told of both."""
        kept = [number for number in range(len(self.ids)) if number not in failed]
        answer = forward(self.keeping(kept)) if kept else None
        if answer is not None and (answer.status != 200 or not failed):
            return answer
        return self.failing(failed, answer)


def batch_of(request: Request) -> Batch | None:
    """Return the batch that the request is; None for any other request."""
    name = request.action
    if request.is_json and name in ("SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"):
        return _by_id(request)
    if request.is_json and name in ("PutEvents", "PutRecords"):
        return _by_place(request, "Entries" if name == "PutEvents" else "Records")
    if request.is_json and name in ("BatchWriteItem", "BatchGetItem"):
        return _by_table(request, "UnprocessedItems" if name == "BatchWriteItem" else "UnprocessedKeys")
    if name == "PublishBatch":
        return _published(request)
    return _deleted(request) if request.method == "POST" and request.path.endswith("?delete") else None


def _by_id(request: Request) -> Batch:
    """SQS: each entry has an id."""
    entries = request.document.get("Entries", [])
    ids = [str(entry.get("Id")) for entry in entries]

    def failing(failed: Failed, answer: Answer | None) -> Answer:
        told = {} if answer is None else answer.document
        errors = []
        for number, problem in failed.items():
            code, words = problem or _INTERNAL
            errors.append({"Id": ids[number], "SenderFault": problem is not None, "Code": code, "Message": words})
        return json_answer({**told, "Failed": [*(told.get("Failed") or ()), *errors]})

    return Batch(
        ids,
        lambda kept: request.with_document({**request.document, "Entries": [entries[number] for number in kept]}),
        failing,
    )


def _by_place(request: Request, name: str) -> Batch:
    """EventBridge and Kinesis: the answers are in the order of the entries."""
    entries = request.document.get(name, [])
    code = "InternalFailure" if name == "Entries" else "ProvisionedThroughputExceededException"
    count = "FailedEntryCount" if name == "Entries" else "FailedRecordCount"

    def failing(failed: Failed, answer: Answer | None) -> Answer:
        told = {} if answer is None else answer.document
        results = list(told.get(name, ()))
        for number in sorted(failed):
            kind, words = failed[number] or (code, "injected")
            results.insert(number, {"ErrorCode": kind, "ErrorMessage": words})
        return json_answer({**told, name: results, count: told.get(count, 0) + len(failed)})

    return Batch(
        [str(number) for number in range(len(entries))],
        lambda kept: request.with_document({**request.document, name: [entries[number] for number in kept]}),
        failing,
    )


def _by_table(request: Request, name: str) -> Batch:
    """DynamoDB: the answer names what was not processed, by table."""
    asked: Mapping[str, Any] = request.document.get("RequestItems", {})

    def items(table: Any) -> list[Any]:
        return list(table if isinstance(table, list) else table["Keys"])

    places = [(table, number) for table, held in asked.items() for number in range(len(items(held)))]

    def chosen(wanted: Collection[int]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for place in wanted:
            table, number = places[place]
            item = items(asked[table])[number]
            if isinstance(asked[table], list):
                found.setdefault(table, []).append(item)
            else:
                found.setdefault(table, {**asked[table], "Keys": []})["Keys"].append(item)
        return found

    def failing(failed: Failed, answer: Answer | None) -> Answer:
        empty: dict[str, Any] = {"Responses": {}} if name == "UnprocessedKeys" else {}
        told = empty if answer is None else answer.document
        return json_answer({**told, name: {**told.get(name, {}), **chosen(failed)}})

    return Batch(
        [str(number) for number in range(len(places))],
        lambda kept: request.with_document({**request.document, "RequestItems": chosen(kept)}),
        failing,
    )


def published_entries(request: Request) -> list[dict[str, str]]:
    """Return the entries of SNS's PublishBatch, each with the names behind its number."""
    entries: dict[int, dict[str, str]] = {}
    for name, value in request.form.items():
        if found := _MEMBER.fullmatch(name):
            entries.setdefault(int(found[1]), {})[found[2]] = value
    return [entries[number] for number in sorted(entries)]


def _published(request: Request) -> Batch:
    """SNS: each entry has an id; the request is a form and the answer XML."""
    entries = published_entries(request)
    ids = [entry.get("Id", "") for entry in entries]

    def keeping(kept: Collection[int]) -> Request:
        form = {name: value for name, value in request.form.items() if not _MEMBER.fullmatch(name)}
        for number, place in enumerate(kept, 1):
            form |= {f"{_MEMBERS}.{number}.{name}": value for name, value in entries[place].items()}
        return request.with_form(form)

    def failing(failed: Failed, answer: Answer | None) -> Answer:
        errors = ""
        for number, problem in failed.items():
            fault, (code, words) = str(problem is not None).lower(), problem or _INTERNAL
            fields = {"Id": ids[number], "SenderFault": fault, "Code": code, "Message": words}
            errors += xml_of({"member": xml_of(fields)}, escaped=True)
        return publish_batch_answer("" if answer is None else answer.body.decode(), failed=errors)

    return Batch(ids, keeping, failing)


def xml_of(fields: Mapping[str, str], *, escaped: bool = False) -> str:
    """Return an element for each field."""
    return "".join(f"<{name}>{value if escaped else escape(value)}</{name}>" for name, value in fields.items())


def publish_batch_answer(text: str, *, successful: str = "", failed: str = "") -> Answer:
    """Return the answer of PublishBatch with these members added to the lists in `text`."""
    text = text or (
        "<PublishBatchResponse><PublishBatchResult><Successful></Successful><Failed></Failed></PublishBatchResult>"
        "<ResponseMetadata><RequestId>proxy</RequestId></ResponseMetadata></PublishBatchResponse>"
    )
    for name, members in (("Successful", successful), ("Failed", failed)):
        text = re.sub(rf"<{name}\s*/>", f"<{name}></{name}>", text)
        if f"</{name}>" not in text:
            text = text.replace("</PublishBatchResult>", f"<{name}></{name}></PublishBatchResult>")
        text = text.replace(f"</{name}>", f"{members}</{name}>")
    return xml_answer(text)


def _deleted(request: Request) -> Batch:
    """S3's DeleteObjects: request and answer are XML."""
    objects = list(_OBJECT.finditer(request.body))
    keys = [unescape(found[1].decode()) for found in objects]

    def keeping(kept: Collection[int]) -> Request:
        body = request.body
        for number, found in reversed(list(enumerate(objects))):
            body = body if number in kept else body[: found.start()] + body[found.end() :]
        return request.with_body(body)

    def failing(failed: Failed, answer: Answer | None) -> Answer:
        code, words = _INTERNAL
        fields = ({"Key": keys[number], "Code": code, "Message": words} for number in failed)
        errors = "".join(xml_of({"Error": xml_of(each)}, escaped=True) for each in fields)
        told = "<DeleteResult></DeleteResult>" if answer is None else answer.body.decode()
        told = re.sub(r"<DeleteResult([^>]*)/>", r"<DeleteResult\1></DeleteResult>", told)
        return xml_answer(told.replace("</DeleteResult>", f"{errors}</DeleteResult>"))

    return Batch(keys, keeping, failing)
