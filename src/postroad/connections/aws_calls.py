"""Calls to AWS: the meaning of botocore's errors, and batches in which each entry has its own outcome.

An error means that the call surely had no effect, that it may have had one, or that the configuration is wrong."""

from __future__ import annotations

import functools
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


def watch(client: Any) -> None:
    """Note each attempt of the client's calls with an unknown outcome, so that a later refusal cannot hide it."""
    client.meta.events.register("needs-retry", _note_attempt, unique_id="postroad-attempts")


def _note_attempt(*, response: Any, caught_exception: Exception | None, **_: Any) -> None:
    unanswered = caught_exception is not None and type(caught_exception).__name__ not in _NEVER_SENT
    if unanswered or (response is not None and response[0].status_code in (500, 502, 504)):
        _attempts.unsure = True


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
    if short in known:
        return known[short](message)
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))
    text = f"{what}: {code}: {message}"
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
            run.settle(batch, outcomes)
    return [run.results[index] for index in range(len(entries))]


class _Run(Generic[T, R]):
    def __init__(self, entries: Sequence[Entry[T]], most: int, most_bytes: int, attempts: int) -> None:
        self.waiting = list(range(len(entries)))
        self.results: dict[int, R | PostroadError] = {}
        self._entries = entries
        self._most, self._most_bytes, self._attempts = most, most_bytes, attempts
        self._failures: dict[int, int] = {}

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

    def settle(self, batch: Sequence[int], outcomes: Sequence[R | Again | PostroadError]) -> None:
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
        self.results[index] = outcome
        if isinstance(outcome, PostroadError):
            self._hold_back(index, outcome)
        return True

    def _hold_back(self, failed: int, error: PostroadError) -> None:
        key = self._entries[failed].key
        behind = [] if key is None else [index for index in self.waiting if self._entries[index].key == key]
        for index in behind:
            self.results[index] = HeldBack(f"not sent: an earlier one of {key!r} failed: {error}")
        if behind:
            self.waiting = [index for index in self.waiting if index not in self.results]

    def stop(self, batch: Sequence[int], error: PostroadError) -> None:
        for index in batch:
            self.results[index] = error
            self._hold_back(index, error)
        for index in self.waiting:
            self.results[index] = Unavailable(f"not sent, because an earlier call failed: {error}")
        self.waiting = []


def pause(failures: int) -> None:
    """Sleep longer after each failure, for a random time, so that many callers do not come back at once."""
    time.sleep(_FIRST_PAUSE * 2 ** (failures - 1) * CHANCE.uniform(0.5, 1.0))
