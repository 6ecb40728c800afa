"""The error that all others are."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import ClassVar, Final

_CREDENTIALS: Final = re.compile(
    r"""(?P<scheme>\b[a-z][a-z0-9+.-]{1,20}(?:://|%3A%2F%2F))    # also inside a query, where it may be encoded
    [^\s/'"&?]{1,200}(?P<at>@|%40)""",
    re.VERBOSE | re.IGNORECASE,
)


def without_credentials(text: str) -> str:
    """Return the text with user and password of every URL in it hidden."""
    return _CREDENTIALS.sub(r"\g<scheme>***\g<at>", text)


class PostroadError(Exception):
    """Something Postroad refuses or could not do. Its message shows no user and password of a URL."""

    slug: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    remedy: str = "See the log for the cause."

    def __init__(
        self, message: str, *, field: str | None = None, remedy: str | None = None, nearest: str | None = None
    ) -> None:
        self.message = without_credentials(message)
        super().__init__(self.message)
        self.field = field
        self.nearest = nearest
        """The name that was probably meant."""
        if remedy is not None:
            self.remedy = remedy
        if self.remedy:
            # Every traceback shows it.
            self.add_note(self.remedy)


class Conflict(PostroadError):
    """It exists already, and is not in the state or of the content that this needs."""

    slug = "conflict"
    status = 409
    remedy = "Look at it first; use another id for something new."


class NotFound(PostroadError):
    """There is nothing of this id."""

    slug = "not-found"
    status = 404
    remedy = "Name an id that was submitted under this tenant."


def describe(error: BaseException) -> str:
    """Return the error in one line, with the place that raised it: `ValueError: no such order [orders.py:place]`."""
    frames = list(traceback.walk_tb(error.__traceback__))
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if not frames:
        return text
    code = frames[-1][0].f_code
    # The name alone: the path differs from machine to machine, and the same failure would be two.
    return f"{text} [{Path(code.co_filename).name}:{code.co_name}]"
