"""What user code raises to say itself whether another attempt makes sense."""

from __future__ import annotations


class Retryable(Exception):
    """The attempt failed; another one may succeed. Without a category the message tells it."""

    def __init__(self, message: str = "", *, category: str | None = None) -> None:
        super().__init__(message)
        self.category = category


class NonRetryable(Exception):
    """The task failed for good. Without a category the message tells it."""

    def __init__(self, message: str = "", *, category: str | None = None) -> None:
        super().__init__(message)
        self.category = category
