"""What handlers, consumers and tasks raise to say whether, and when, there is another attempt."""

from __future__ import annotations

from collections.abc import Iterator

from postroad.errors.root import InvalidInput

_LONGEST_AFTER = 43_200
_LONGEST_CHAIN = 20


class Retryable(Exception):
    """Raise it in a handler, a consumer or a task: the attempt failed, and another one may succeed.

    Args:
        message: What happened.
        after: Seconds until the next attempt, 0 to 43,200; by default the delays of the handler or task decide. It
            does not add attempts: the last one fails for good.
        category: The category that a task records; by default it follows from the message and from what caused it.

    Raises:
        InvalidInput: `after` is out of bounds.

    Example:
        raise postroad.Retryable("the bank is closed for a minute", after=60)
    """

    def __init__(self, message: str = "", *, after: float | None = None, category: str | None = None) -> None:
        given: object = after
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if after is not None and not (is_number and 0 <= after <= _LONGEST_AFTER):
            raise InvalidInput(
                f"after: {after!r} is not a number of seconds from 0 to {_LONGEST_AFTER}",
                field="after",
                remedy=f"Give a number of seconds from 0 to {_LONGEST_AFTER}, or leave it out.",
            )
        super().__init__(message)
        self.after = after
        self.category = category


class NonRetryable(Exception):
    """Raise it in a handler, a consumer or a task: it failed for good, and no other attempt is made.

    The message becomes a dead letter at once, with the reason `not_retryable`; a task has failed.

    Args:
        message: What happened.
        category: The category that a task records; by default it follows from the message and from what caused it.

    Example:
        raise postroad.NonRetryable("there is no order A-1")
    """

    def __init__(self, message: str = "", *, category: str | None = None) -> None:
        super().__init__(message)
        self.category = category


def retry_wish(error: BaseException) -> Retryable | NonRetryable | None:
    """Return the first of the two among the error and what caused it; None if nothing was said about retries.

    Of the members of an exception group, such as that of an `asyncio.TaskGroup`, a `NonRetryable` counts before others.
    """
    for each in _chain(error):
        if isinstance(each, Retryable | NonRetryable):
            return each
        if isinstance(each, BaseExceptionGroup):
            wishes = [wish for member in each.exceptions if (wish := retry_wish(member)) is not None]
            if wishes:
                return next((wish for wish in wishes if isinstance(wish, NonRetryable)), wishes[0])
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, then its cause or its context, and theirs; each once."""
    each: BaseException | None = error
    seen: set[int] = set()
    while each is not None and id(each) not in seen and len(seen) < _LONGEST_CHAIN:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
