"""The categories of errors, which decide whether another attempt makes sense."""

from __future__ import annotations

import errno
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from postroad.errors import NonRetryable, Retryable, text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """A category with everything that identifies it.

    Codes and types are also searched in messages, phrases only there. AWS codes count before the HTTP status, which is
    400 when AWS throttles. `libraries` are classes as "package.Class"; `databases` are SQLSTATEs, their first two
    characters, or the names of SQLite's results.
    """

    name: str
    retryable: bool
    statuses: tuple[int, ...] = ()
    codes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    aws: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    databases: tuple[str, ...] = ()


CATEGORIES = (
    Category(
        name="auth",
        retryable=False,
        statuses=(401, 403),
        codes=("InvalidCredentials", "AccessDenied"),
        types=("AuthenticationError", "AuthorizationError", "InvalidCredentials", "AccessDenied", "PermissionError"),
        phrases=("invalid api key", "password authentication failed", "no pg_hba.conf entry"),
        aws=(
            *("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "UnrecognizedClientException"),
            *("InvalidClientTokenId", "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"),
            *("ExpiredToken", "ExpiredTokenException", "MissingAuthenticationToken"),
        ),
        libraries=("botocore.NoCredentialsError", "botocore.PartialCredentialsError"),
        databases=("28", "42501"),
    ),
    Category(
        name="validation",
        retryable=False,
        statuses=(400, 422),
        types=("ValidationError", "ValueError"),
        phrases=("unknown task",),
        aws=("ValidationException", "ValidationError", "ParamValidationError"),
        databases=("22", "23", "SQLITE_CONSTRAINT"),
    ),
    Category(name="parse", retryable=False, types=("JSONDecodeError",), phrases=("unexpected token",)),
    Category(
        name="not-found",
        retryable=False,
        statuses=(404,),
        codes=("ENOENT", "MODULE_NOT_FOUND"),
        types=("FileNotFoundError", "ModuleNotFoundError"),
        aws=(
            *("ResourceNotFoundException", "NoSuchKey", "NoSuchBucket", "QueueDoesNotExist"),
            "AWS.SimpleQueueService.NonExistentQueue",
        ),
        databases=("3D", "SQLITE_CANTOPEN"),
    ),
    Category(
        name="programming",
        retryable=False,
        types=(
            *("TypeError", "NameError", "UnboundLocalError", "AttributeError", "AssertionError", "ImportError"),
            *("SyntaxError", "IndentationError", "TabError", "ReferenceError", "RangeError"),
            *("LookupError", "KeyError", "IndexError"),
            *("ArithmeticError", "ZeroDivisionError", "OverflowError", "FloatingPointError"),
        ),
        databases=("42", "SQLITE_ERROR", "SQLITE_MISUSE"),
    ),
    Category(
        name="rate-limit",
        retryable=True,
        statuses=(429,),
        codes=("ThrottlingException",),
        types=("RateLimitError", "ThrottlingException"),
        phrases=("too many requests",),
        # What botocore itself treats as throttling.
        aws=(
            *("Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "SlowDown"),
            *("RequestThrottledException", "TooManyRequestsException", "ProvisionedThroughputExceededException"),
            *("TransactionInProgressException", "RequestLimitExceeded", "BandwidthLimitExceeded"),
            *("LimitExceededException", "PriorRequestNotComplete", "EC2ThrottledException", "KmsThrottlingException"),
        ),
    ),
    Category(
        name="server-error",
        retryable=True,
        statuses=tuple(range(500, 600)),
        codes=("InternalServerError", "ServiceUnavailable", "BadGateway"),
        types=("InternalServerError", "ServiceUnavailable", "BadGateway"),
        aws=("InternalError", "InternalFailure", "InternalServerError", "ServiceUnavailable", "OperationAborted"),
        libraries=("urllib3.ResponseError", "requests.RetryError", "apsw.BusyError", "apsw.LockedError"),
        # Rolled back, out of resources, locked, shut down or starting up, a fault of the machine.
        databases=(
            *("40", "53", "55P03", "55006", "57P01", "57P02", "57P03", "57P05", "58"),
            *("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL", "SQLITE_IOERR", "SQLITE_FULL"),
        ),
    ),
    Category(
        name="network",
        retryable=True,
        codes=(
            *("ETIMEDOUT", "ECONNREFUSED", "ECONNRESET", "ENOTFOUND", "EPIPE", "EAI_AGAIN", "ECONNABORTED"),
            *("ENETUNREACH", "ENETDOWN", "ENETRESET", "EHOSTUNREACH", "EHOSTDOWN", "ENOTCONN", "ESHUTDOWN"),
        ),
        types=(
            *("ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "ConnectionAbortedError"),
            *("BrokenPipeError", "gaierror"),
        ),
        phrases=("socket hang up", "connection is closed"),
        libraries=(
            *("httpx.NetworkError", "httpx.RemoteProtocolError", "httpx.ProxyError"),
            *("httpcore.NetworkError", "httpcore.RemoteProtocolError", "httpcore.ProxyError"),
            *("requests.ConnectionError", "requests.ChunkedEncodingError"),
            *("urllib3.NewConnectionError", "urllib3.ProtocolError", "urllib3.ProxyError", "urllib3.SSLError"),
            *("aiohttp.ClientConnectionError", "aiohttp.ClientPayloadError"),
            *("psycopg.OperationalError", "psycopg2.OperationalError"),
            *("botocore.EndpointConnectionError", "botocore.ConnectionClosedError", "botocore.ProxyConnectionError"),
            *("botocore.ConnectionError", "botocore.HTTPClientError", "botocore.IncompleteReadError"),
            *("botocore.ResponseStreamingError", "http.IncompleteRead", "http.BadStatusLine"),
            *("ssl.SSLEOFError", "ssl.SSLZeroReturnError", "ssl.SSLSyscallError", "asyncio.IncompleteReadError"),
        ),
        databases=("08",),
    ),
    Category(
        name="timeout",
        retryable=True,
        codes=("TIMEOUT", "ESOCKETTIMEDOUT"),
        types=("TimeoutError", "AbortError"),
        aws=("RequestTimeout", "RequestTimeoutException"),
        libraries=(
            *("httpx.TimeoutException", "httpcore.TimeoutException", "urllib3.TimeoutError"),
            *("requests.Timeout", "requests.ConnectTimeout"),
            *("aiohttp.ServerTimeoutError", "psycopg_pool.PoolTimeout", "psycopg.ConnectionTimeout"),
            *("botocore.ConnectTimeoutError", "botocore.ReadTimeoutError"),
        ),
        databases=("57014", "25P03", "25P04"),
    ),
)


class ErrorClass(msgspec.Struct, frozen=True):
    """The category of an error.

    Attributes:
        category: The category, such as `network`.
        retryable: Whether another attempt may succeed.
    """

    category: str
    retryable: bool


UNKNOWN = ErrorClass("unknown", False)
_STATUSES = {status: category for category in CATEGORIES for status in category.statuses}
# Programs in other languages put the name of an exception where Python puts a code, and the other way round.
_TYPES = {name: category for category in CATEGORIES for name in (*category.types, *category.codes, *category.libraries)}
_CODES = {name.casefold(): category for name, category in _TYPES.items()}
_AWS_CODES = {name.casefold(): category for category in CATEGORIES for name in category.aws}
_DATABASES = {name: category for category in CATEGORIES for name in category.databases}
_ETIMEDOUT = re.compile(r"(?<!\w)ETIMEDOUT(?!\w)", re.IGNORECASE)
_ERRNO = re.compile(r"\[Errno (\d{1,9})\]")
_LONGEST_CHAIN = 20


def classify_error(
    message: str, *, status: int | None = None, code: str | None = None, type_name: str | None = None
) -> ErrorClass:
    """Return the class of an error.

    An AWS code counts first, then the HTTP status, any other code, the exception's type, and whole words of the text.

    Args:
        message: The text of the error.
        status: The HTTP status of the response, if there was one.
        code: A code such as "ECONNRESET" or "ThrottlingException".
        type_name: The name of the exception's class; "package.Class" for that of a library.
    """
    found = _category(message, status, code, type_name)
    return UNKNOWN if found is None else ErrorClass(found.name, found.retryable)


def classify_exception(error: BaseException) -> ErrorClass:
    """Return the class of an exception: its own, else that of what caused it.

    `Retryable` and `NonRetryable` decide about another attempt wherever they stand before the first known error. An
    exception group is as retryable as all its members are.
    """
    decided: bool | None = None
    for each in _chain(error):
        if isinstance(each, Retryable | NonRetryable):
            decided = isinstance(each, Retryable) if decided is None else decided
            if each.category is not None:
                return ErrorClass(each.category, decided)
        if isinstance(each, BaseExceptionGroup):
            group = class_of_group(each, classify_exception)
            return group if decided is None else ErrorClass(group.category, decided)
        if (found := _category_of(each)) is not None:
            return ErrorClass(found.name, found.retryable if decided is None else decided)
    return ErrorClass(UNKNOWN.category, bool(decided))


def class_of_group(
    group: BaseExceptionGroup[BaseException], classify: Callable[[BaseException], ErrorClass]
) -> ErrorClass:
    """Return the class of the first member that prevents another attempt, else that of the first member."""
    classes = [classify(member) for member in group.exceptions]
    return next((each for each in classes if not each.retryable), classes[0])


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception, then its `reason`, its cause and its context, and theirs; each once."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _LONGEST_CHAIN:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        context = None if each.__suppress_context__ else each.__context__
        behind = (_attribute(each, "reason"), each.__cause__, context)
        waiting += [other for other in behind if isinstance(other, BaseException)]


def _category_of(error: BaseException) -> Category | None:
    by_database = _by_database(error)
    if by_database is not None:
        return by_database
    names = (name for kind in type(error).__mro__ for name in (_qualified(kind), kind.__name__))
    type_name = next((name for name in names if name in _TYPES), None)
    return _category(text_of(error), _status(error), _code(error), type_name)


def _category(message: str, status: int | None, code: str | None, type_name: str | None) -> Category | None:
    if type_name == "TimeoutError" and _ETIMEDOUT.search(message):
        # A timeout that names ETIMEDOUT is a network error.
        type_name = "ETIMEDOUT"
    return (
        (_AWS_CODES.get(code.casefold()) if code is not None else None)
        or (_STATUSES.get(status) if status is not None else None)
        or (_CODES.get(code.casefold()) if code is not None else None)
        or (_TYPES.get(type_name) if type_name is not None else None)
        or next((category for category, pattern in _PATTERNS if pattern.search(message)), None)
    )


def _qualified(kind: type) -> str:
    """Return the package and the name of a class; its module inside the package differs between versions."""
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _by_database(error: BaseException) -> Category | None:
    """Return the category by the SQLSTATE of a PostgreSQL driver, or by the result code of sqlite3."""
    state = _attribute(error, "sqlstate") or _attribute(error, "pgcode")
    if isinstance(state, str):
        return _DATABASES.get(state) or _DATABASES.get(state[:2])
    result = _attribute(error, "sqlite_errorname")
    if isinstance(result, str):
        # SQLITE_BUSY_SNAPSHOT is a kind of SQLITE_BUSY.
        return _DATABASES.get("_".join(result.split("_")[:2]))
    if _qualified(type(error)) in ("psycopg.OperationalError", "psycopg2.OperationalError"):
        # A refused connection has no SQLSTATE, and a wrong password does not improve.
        return _AUTH if _AUTH_PATTERN.search(text_of(error)) else None
    return None


def _pattern(category: Category) -> re.Pattern[str]:
    alternatives = [*map(re.escape, (*category.codes, *category.types, *category.phrases))]
    if category.name == "server-error":
        alternatives.append(r"(?:HTTP(?:/[\d.]+)?|status(?:[ _]code)?)[ :=]+5\d\d")
    return re.compile(rf"(?<!\w)(?:{'|'.join(alternatives)})(?!\w)", re.IGNORECASE)


_PATTERNS = tuple((category, _pattern(category)) for category in CATEGORIES)
_AUTH, _AUTH_PATTERN = next((category, pattern) for category, pattern in _PATTERNS if category.name == "auth")


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that HTTP and AWS clients put on their exceptions."""
    holders, names = (error, _attribute(error, "response")), ("status", "status_code", "code")
    found = [_attribute(holder, name) for holder in holders for name in names]
    found.append(_in_response(error, "ResponseMetadata", "HTTPStatusCode"))
    return next((value for value in found if type(value) is int and 100 <= value <= 599), None)


def _code(error: BaseException) -> str | None:
    code = _attribute(error, "code") or _in_response(error, "Error", "Code")
    if isinstance(code, str):
        return code
    number = _attribute(error, "errno")
    if number is None and (named := _ERRNO.search(text_of(error))) is not None:
        # asyncio joins several failures into one text without their errno.
        number = int(named[1])
    return errno.errorcode.get(number) if isinstance(number, int) else None


def _in_response(error: BaseException, part: str, name: str) -> Any:
    response = _attribute(error, "response")
    found = response.get(part) if isinstance(response, Mapping) else None
    return found.get(name) if isinstance(found, Mapping) else None


def _attribute(holder: object, name: str) -> Any:
    """Return an attribute of a foreign object; None if it warns or raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return getattr(holder, name, None)
        except Exception:
            return None
