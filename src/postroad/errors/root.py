"""The error that all others are."""

from __future__ import annotations

from typing import ClassVar


class PostroadError(Exception):
    """Something Postroad refuses or could not do."""

    slug: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    remedy: str = "See the log for the cause."

    def __init__(
        self, message: str, *, field: str | None = None, remedy: str | None = None, nearest: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.nearest = nearest
        """The name that was probably meant."""
        if remedy is not None:
            self.remedy = remedy
