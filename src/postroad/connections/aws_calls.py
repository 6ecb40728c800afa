"""Calls to AWS: the meaning of botocore's errors, and batches in which each entry has its own outcome.

An error means that the call surely had no effect, that it may have had one, or that the configuration is wrong."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from postroad.backoff import CHANCE
from postroad.errors import (
    ConfigurationError,
    HeldBack,
    InvalidInput,
    NotPermitted,
    OutcomeUnknown,
    PostroadError,
    StaleReceipt,
    Throttled,
    TransportError,
    Unavailable,
)

T = TypeVar("T")
R = TypeVar("R")
ATTEMPTS = 5
_FIRST_PAUSE = 0.1
_LOOK_AHEAD = 2_000
Make = Callable[[str], PostroadError]
"""Makes the adapter's own error for a code of AWS from AWS's message."""


def _codes(names: str) -> frozenset[str]:
    return frozenset(names.split())


THROTTLED = _codes("""
    BandwidthLimitExceeded EC2ThrottledException KMSThrottling KMSThrottlingException KmsThrottled LimitExceeded
    LimitExceededException OverLimit PriorRequestNotComplete ProvisionedThroughputExceeded
    ProvisionedThroughputExceededException RequestLimitExceeded RequestThrottled RequestThrottledException SlowDown
    Throttled ThrottledException Throttling ThrottlingException TooManyRequestsException TransactionInProgressException
""")
_INVALID = _codes("""
    InvalidArgument InvalidArgumentException InvalidAttributeName InvalidAttributeValue InvalidMessageContents
    InvalidParameter InvalidParameterException InvalidParameterValue InvalidParameterValueException MissingParameter
    UnsupportedOperation ValidationError ValidationException
""")
_DENIED = _codes("""
    AccessDenied AccessDeniedException AuthorizationError AuthorizationErrorException ExpiredToken ExpiredTokenException
    IncompleteSignature InvalidAccessKeyId InvalidClientTokenId InvalidSecurity KMSAccessDenied KMSAccessDeniedException
    KMSDisabled KMSDisabledException KMSInvalidState KMSInvalidStateException KMSNotFound KMSNotFoundException
    KMSOptInRequired KmsAccessDenied KmsDisabled KmsInvalidKeyUsage KmsInvalidState KmsNotFound KmsOptInRequired
    MissingAuthenticationToken OptInRequired SignatureDoesNotMatch UnauthorizedOperation UnrecognizedClientException
""")
_NEVER_SENT = frozenset({"ConnectTimeoutError", "EndpointConnectionError", "ProxyConnectionError", "SSLError"})
_CREDENTIALS = (
    "Give credentials in AWS's usual ways (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role); "
    "for an emulator any value will do."
)
_CONFIGURATION = {
    "NoRegionError": "Name the region: aws://eu-central-1, or set AWS_REGION.",
    "InvalidRegionError": "Name a region of AWS, such as eu-central-1.",
    "NoCredentialsError": _CREDENTIALS,
    "PartialCredentialsError": _CREDENTIALS,
    "CredentialRetrievalError": _CREDENTIALS,
    "NoAuthTokenError": _CREDENTIALS,
    "SSOTokenLoadError": _CREDENTIALS,
    "TokenRetrievalError": _CREDENTIALS,
    "UnauthorizedSSOTokenError": _CREDENTIALS,
    "ProfileNotFound": "Name a profile of your AWS configuration, or unset AWS_PROFILE.",
    "ConfigParseError": "Correct the AWS configuration file that the message names.",
    "InvalidEndpointConfigurationError": "Correct endpoint_url.",
    "EndpointResolutionError": "Correct the region or endpoint_url.",
    "UnknownEndpointError": "Correct the region or endpoint_url.",
}
_attempts = threading.local()


class HalfAnswer(Exception):
    """An answer that broke off: botocore takes JSON that it cannot read for an answer without content."""


def watch(client: Any) -> None:
    """Watch each attempt of the client's calls.

    One with an unknown outcome is noted, so that a later refusal cannot hide it. Half an answer is asked for again, and
    raised as an error after the last attempt.
    """
    most = (client.meta.config.retries or {}).get("total_max_attempts", 1)
    note = functools.partial(_note_attempt, most)
    client.meta.events.register("needs-retry", note, unique_id="postroad-attempts")


def _note_attempt(
    most: int, *, response: Any, caught_exception: Exception | None, operation: Any, attempts: int, **_: Any
) -> float | None:
    """Return after how many seconds the call is to be repeated; None leaves that to botocore."""
    half = response is not None and _is_half(response[0], response[1], operation)
    unanswered = caught_exception is not None and type(caught_exception).__name__ not in _NEVER_SENT
    if half or unanswered or (response is not None and response[0].status_code in (500, 502, 504)):
        _attempts.unsure = True
    if half and attempts >= most:
        raise HalfAnswer("the answer broke off")
    return _pause_seconds(attempts) if half else None


def _is_half(answer: Any, parsed: Mapping[str, Any], operation: Any) -> bool:
    is_json = operation.service_model.resolved_protocol == "json" and operation.output_shape is not None
    if answer.status_code >= 300 or not is_json or parsed.keys() - {"ResponseMetadata"}:
        return False
    try:
        json.loads(answer.content)
    except ValueError:
        return True
    return False


def was_unsure() -> bool:
    """Return whether an attempt of this thread's last call got no answer and so may have had an effect."""
    return getattr(_attempts, "unsure", False)


@functools.cache
def api_name(operation: str) -> str:
    """Return the name that AWS gives a call of its client: ReceiveMessage for `receive_message`."""
    return "".join(word.capitalize() for word in operation.split("_"))


@contextmanager
def translated(what: str, known: Mapping[str, Make] | None = None) -> Iterator[None]:
    """Raise every error of the driver as one of Postroad's. `known` has the adapter's own for some codes."""
    _attempts.unsure = False
    try:
        yield
    except PostroadError:
        raise
    except Exception as error:
        raise _translated(error, what, known or {}) from error


class _Absent(PostroadError):
    """There is no such resource; never leaves this file."""


def ask(what: str, operation: Callable[..., Any], /, *missing: str, **parameters: Any) -> Any:
    """Return the answer of AWS, or None if it is one of the error codes `missing`."""
    try:
        with translated(what, dict.fromkeys(missing, _Absent)):
            return operation(**parameters)
    except _Absent:
        return None


def pages(what: str, operation: Callable[..., Any], /, *missing: str, **parameters: Any) -> Iterator[Any]:
    """Yield the pages of an answer of AWS, which end at one of the error codes `missing`."""
    while (page := ask(what, operation, *missing, **parameters)) is not None:
        yield page
        name = next((name for name in ("NextToken", "PaginationToken") if page.get(name)), None)
        if name is None:
            return
        parameters[name] = page[name]


def _translated(error: Exception, what: str, known: Mapping[str, Make]) -> PostroadError:
    if (response := getattr(error, "response", None)) and isinstance(response, dict) and "Error" in response:
        return _answered(response, what, known)
    name, text = type(error).__name__, f"{what}: {error}"
    if name in _CONFIGURATION:
        return ConfigurationError(text, remedy=_CONFIGURATION[name])
    if name == "ParamValidationError":
        return InvalidInput(text)
    return Unavailable(text) if name in _NEVER_SENT and not was_unsure() else OutcomeUnknown(text)


def _answered(response: Mapping[str, Any], what: str, known: Mapping[str, Make]) -> PostroadError:
    code, message = (str(response["Error"].get(part, "")) for part in ("Code", "Message"))
    short = short_code(code)
    text = f"{what}: {code}: {message}"
    if short in known:
        error = known[short](message)
        # An earlier attempt may have used the receipt up.
        return OutcomeUnknown(text) if isinstance(error, StaleReceipt) and was_unsure() else error
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))
    # A refusal concerns its own attempt only; one before it may have had its effect.
    if (status >= 500 and status != 503) or was_unsure():
        return OutcomeUnknown(text)
    return refused(short, text)


def short_code(code: str) -> str:
    """Return the last part of an error code: SQS uses both 'QueueDoesNotExist' and 'AWS.SimpleQueueService…'."""
    return code.rpartition(".")[2] if code.startswith("AWS.") else code.rpartition("#")[2]


def refused(code: str, text: str) -> PostroadError:
    """Return the error for a call that AWS answered and did not carry out."""
    if code in _INVALID:
        return InvalidInput(text)
    if code in _DENIED:
        return NotPermitted(text)
    return Throttled(text) if code in THROTTLED else Unavailable(text)


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One entry of a batch. Entries with the same `key` are sent one after another, never two in one call."""

    content: T
    size: int = 0
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Again:
    """The outcome of an entry that failed through no fault of its own and may be retried."""

    error: PostroadError


Call = Callable[[list[T]], "Sequence[R | Again | PostroadError]"]


def deliver(
    entries: Sequence[Entry[T]], call: Call[T, R], *, most: int, most_bytes: int, attempts: int = ATTEMPTS
) -> list[R | PostroadError]:
    """Call with batches until every entry has its result or its error, in the order of `entries`.

    If a call fails as a whole, no more calls are made: what was not sent yet is `Unavailable`, or `HeldBack` behind a
    failed entry of its key. An error other than `TransportError` is raised if nothing was sent before.
    """
    run: _Run[T, R] = _Run(entries, most, most_bytes, attempts)
    while run.waiting:
        batch = run.take()
        try:
            outcomes = call([entries[index].content for index in batch])
        except PostroadError as error:
            if not isinstance(error, TransportError) and not run.results:
                raise
            run.stop(batch, error)
        else:
            run.settle(batch, outcomes, unsure=was_unsure())
    return [run.results[index] for index in range(len(entries))]


class _Run(Generic[T, R]):
    def __init__(self, entries: Sequence[Entry[T]], most: int, most_bytes: int, attempts: int) -> None:
        self.waiting = list(range(len(entries)))
        self.results: dict[int, R | PostroadError] = {}
        self._entries = entries
        self._most, self._most_bytes, self._attempts = most, most_bytes, attempts
        self._failures: dict[int, int] = {}
        self._unsure: set[int] = set()

    def take(self) -> list[int]:
        """Return the next batch, in order. An entry that does not fit keeps back the later ones of its key."""
        batch: list[int] = []
        size = 0
        keys: set[str] = set()
        for index in islice(self.waiting, _LOOK_AHEAD):
            entry = self._entries[index]
            if entry.key in keys:
                continue
            if batch and size + entry.size > self._most_bytes:
                break
            batch.append(index)
            size += entry.size
            if entry.key is not None:
                keys.add(entry.key)
            if len(batch) == self._most:
                break
        taken = set(batch)
        self.waiting = [index for index in self.waiting if index not in taken]
        return batch

    def settle(
        self, batch: Sequence[int], outcomes: Sequence[R | Again | PostroadError], *, unsure: bool = False
    ) -> None:
        """Note the outcomes of a call; if it is `unsure`, an attempt before the answer may have had effects."""
        self._unsure.update(batch if unsure else ())
        again = [index for index, outcome in zip(batch, outcomes, strict=True) if not self._settled(index, outcome)]
        if again:
            # In front of all others, so that nothing of its key overtakes it.
            self.waiting[:0] = again
            pause(max(self._failures[index] for index in again))

    def _settled(self, index: int, outcome: R | Again | PostroadError) -> bool:
        if isinstance(outcome, Again):
            failures = self._failures[index] = self._failures.get(index, 0) + 1
            if failures < self._attempts:
                return False
            outcome = outcome.error
        if isinstance(outcome, PostroadError):
            outcome = self._honest(index, outcome)
            self._hold_back(index, outcome)
        self.results[index] = outcome
        return True

    def _honest(self, index: int, error: PostroadError) -> PostroadError:
        """Return the error of an entry: a refusal says nothing of the attempts before it that got no answer."""
        if index not in self._unsure or not isinstance(error, Unavailable | StaleReceipt):
            return error
        return OutcomeUnknown(f"{error}; an attempt before this got no answer and may have taken effect")

    def _hold_back(self, failed: int, error: PostroadError) -> None:
        key = self._entries[failed].key
        behind = [] if key is None else [index for index in self.waiting if self._entries[index].key == key]
        for index in behind:
            self.results[index] = HeldBack(f"not sent: an earlier one of {key!r} failed: {error}")
        if behind:
            self.waiting = [index for index in self.waiting if index not in self.results]

    def stop(self, batch: Sequence[int], error: PostroadError) -> None:
        for index in batch:
            self.results[index] = self._honest(index, error)
            self._hold_back(index, error)
        for index in self.waiting:
            self.results[index] = Unavailable(f"not sent, because an earlier call failed: {error}")
        self.waiting = []


def pause(failures: int) -> None:
    """Sleep longer after each failure, for a random time, so that many callers do not come back at once."""
    time.sleep(_pause_seconds(failures))


def _pause_seconds(failures: int) -> float:
    return _FIRST_PAUSE * float(2 ** (failures - 1)) * CHANCE.uniform(0.5, 1.0)
