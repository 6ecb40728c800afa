"""Which category an error belongs to, and whether another attempt makes sense."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from postroad.tasks.categories import CATEGORIES, Category
from postroad.tasks.failures import NonRetryable, Retryable


class ErrorClass(msgspec.Struct, frozen=True):
    """The category of an error."""

    category: str
    retryable: bool


UNKNOWN = ErrorClass("unknown", False)
_STATUSES = {status: category for category in CATEGORIES for status in category.statuses}
# Programs in other languages put the name of an exception where Python puts a code, and the other way round.
_TYPES = {name: category for category in CATEGORIES for name in (*category.types, *category.codes)}
_CODES = {name.casefold(): category for name, category in _TYPES.items()}
_ETIMEDOUT = re.compile(r"(?<!\w)ETIMEDOUT(?!\w)", re.IGNORECASE)


def classify_error(
    message: str, *, status: int | None = None, code: str | None = None, type_name: str | None = None
) -> ErrorClass:
    """The class of an error by its status, then its code, then its exception's type, then whole words of its text."""
    found = (
        (_STATUSES.get(status) if status is not None else None)
        or (_CODES.get(code.casefold()) if code is not None else None)
        or (_by_type(type_name, message) if type_name is not None else None)
        or _by_words(message)
    )
    return UNKNOWN if found is None else ErrorClass(found.name, found.retryable)


def classify_exception(error: BaseException) -> ErrorClass:
    """The class of an exception; the types it derives from count where its own name says nothing."""
    cause = error.__cause__ if isinstance(error, Retryable | NonRetryable) and error.__cause__ is not None else error
    names = (kind.__name__ for kind in type(cause).__mro__)
    type_name = next((name for name in names if name in _TYPES), None)
    found = classify_error(str(cause), status=_status(cause), code=_code(cause), type_name=type_name)
    if isinstance(error, Retryable | NonRetryable):
        return ErrorClass(error.category or found.category, isinstance(error, Retryable))
    return found


def _by_type(type_name: str, message: str) -> Category | None:
    # A timeout that names ETIMEDOUT is one of the network's.
    named = "ETIMEDOUT" if type_name == "TimeoutError" and _ETIMEDOUT.search(message) else type_name
    return _TYPES.get(named)


def _by_words(message: str) -> Category | None:
    return next((category for category, words in _WORDS if words.search(message)), None)


def _words(category: Category) -> re.Pattern[str]:
    alternatives = [*map(re.escape, (*category.codes, *category.types, *category.phrases))]
    if category.name == "server-error":
        alternatives.append(r"(?:HTTP(?:/[\d.]+)?|status(?:[ _]code)?)[ :=]+5\d\d")
    return re.compile(rf"(?<!\w)(?:{'|'.join(alternatives)})(?!\w)", re.IGNORECASE)


_WORDS = tuple((category, _words(category)) for category in CATEGORIES)


def _status(error: BaseException) -> int | None:
    """The HTTP status that clients of HTTP and of AWS leave on their exceptions."""
    return next((value for value in _answers(error) if type(value) is int and 100 <= value <= 599), None)


def _answers(error: BaseException) -> Iterator[Any]:
    for holder in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            yield getattr(holder, name, None)
    yield _in_response(error, "ResponseMetadata", "HTTPStatusCode")


def _code(error: BaseException) -> str | None:
    code = getattr(error, "code", None) or _in_response(error, "Error", "Code")
    if isinstance(code, str):
        return code
    number = getattr(error, "errno", None)
    return errno.errorcode.get(number) if isinstance(number, int) else None


def _in_response(error: BaseException, part: str, name: str) -> Any:
    response = getattr(error, "response", None)
    found = response.get(part) if isinstance(response, Mapping) else None
    return found.get(name) if isinstance(found, Mapping) else None
