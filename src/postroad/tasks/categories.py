"""The categories of errors: what belongs to each, and whether another attempt makes sense.

Libraries are never imported to tell their errors apart: an exception is known by the package and the name of its class.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """One row of the table.

    Codes and types are also looked for in messages, phrases only there. AWS codes count before the HTTP status, which
    is 400 when AWS throttles. `libraries` are classes as "package.Class", `databases` are SQLSTATEs or their first two
    characters, and the names of SQLite's results.
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
        # What botocore itself takes for throttling.
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
        libraries=(*("urllib3.ResponseError", "requests.RetryError", "apsw.BusyError", "apsw.LockedError"),),
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
