"""What botocore's errors mean: surely without effect, perhaps with effect, or a mistake in the configuration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from postroad.errors import (
    ConfigurationError,
    InvalidInput,
    NotPermitted,
    OutcomeUnknown,
    PostroadError,
    Throttled,
    Unavailable,
)

Make = Callable[[str], PostroadError]
"""Makes the adapter's own error for one of AWS's codes out of AWS's words."""

THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "KMSThrottling",
        "KMSThrottlingException",
        "KmsThrottled",
        "LimitExceeded",
        "LimitExceededException",
        "OverLimit",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceeded",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttled",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    }
)
_INVALID = frozenset(
    {
        "InvalidArgument",
        "InvalidArgumentException",
        "InvalidAttributeName",
        "InvalidAttributeValue",
        "InvalidMessageContents",
        "InvalidParameter",
        "InvalidParameterException",
        "InvalidParameterValue",
        "InvalidParameterValueException",
        "MissingParameter",
        "UnsupportedOperation",
        "ValidationError",
        "ValidationException",
    }
)
_DENIED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "AuthorizationError",
        "AuthorizationErrorException",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "KMSAccessDenied",
        "KMSAccessDeniedException",
        "KMSDisabled",
        "KMSDisabledException",
        "KMSInvalidState",
        "KMSInvalidStateException",
        "KMSNotFound",
        "KMSNotFoundException",
        "KMSOptInRequired",
        "KmsAccessDenied",
        "KmsDisabled",
        "KmsInvalidKeyUsage",
        "KmsInvalidState",
        "KmsNotFound",
        "KmsOptInRequired",
        "MissingAuthenticationToken",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "UnauthorizedOperation",
        "UnrecognizedClientException",
    }
)
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
    """Note every attempt of the client's calls whose outcome nobody knows, so that a later refusal cannot hide it."""
    client.meta.events.register("needs-retry", _note_attempt, unique_id="postroad-attempts")


def _note_attempt(*, response: Any, caught_exception: Exception | None, **_: Any) -> None:
    unanswered = caught_exception is not None and type(caught_exception).__name__ not in _NEVER_SENT
    if unanswered or (response is not None and response[0].status_code in (500, 502, 504)):
        _attempts.unsure = True


def was_unsure() -> bool:
    """Whether an attempt of this thread's last call got no answer, so that a later one may have met its effect."""
    return getattr(_attempts, "unsure", False)


@contextmanager
def translated(what: str, known: Mapping[str, Make] | None = None) -> Iterator[None]:
    """Raise every error of the driver as one of Postroad's. `known` gives the adapter's own for some codes."""
    _attempts.unsure = False
    try:
        yield
    except PostroadError:
        raise
    except Exception as error:
        raise translate(error, what, known or {}) from error


def translate(error: Exception, what: str, known: Mapping[str, Make]) -> PostroadError:
    """Postroad's error for one of the driver's."""
    if (response := getattr(error, "response", None)) and isinstance(response, dict) and "Error" in response:
        return _answered(response, what, known)
    name, text = type(error).__name__, f"{what}: {error}"
    if name in _CONFIGURATION:
        return ConfigurationError(text, remedy=_CONFIGURATION[name])
    if name == "ParamValidationError":
        return InvalidInput(text)
    if name in _NEVER_SENT and not was_unsure():
        return Unavailable(text)
    return OutcomeUnknown(text)


def _answered(response: Mapping[str, Any], what: str, known: Mapping[str, Make]) -> PostroadError:
    code = str(response["Error"].get("Code", ""))
    words = str(response["Error"].get("Message", ""))
    short = short_code(code)
    if short in known:
        return known[short](words)
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))
    text = f"{what}: {code}: {words}"
    # A refusal speaks of its own attempt only; one before it may have had its effect.
    if (status >= 500 and status != 503) or was_unsure():
        return OutcomeUnknown(text)
    return refused(short, text)


def short_code(code: str) -> str:
    """The last part of an error code: SQS says both 'QueueDoesNotExist' and 'AWS.SimpleQueueService…'."""
    return code.rpartition(".")[2] if code.startswith("AWS.") else code.rpartition("#")[2]


def refused(code: str, text: str) -> PostroadError:
    """The error for a call that AWS answered and did not carry out."""
    if code in _INVALID:
        return InvalidInput(text)
    if code in _DENIED:
        return NotPermitted(text)
    if code in THROTTLED:
        return Throttled(text)
    return Unavailable(text)
