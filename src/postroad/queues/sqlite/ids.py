"""Message ids and receipts, made out of row ids so that neither needs to be stored or searched."""

from __future__ import annotations

import re

_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_RECEIPT = re.compile(r"(\d{1,19})-(\d{1,9})")
_VARIANT = 0b10 << 62
MAX_ID = (1 << 62) - 1


class MessageIds:
    """UUIDs (version 8) of 60 bits that are the file's own and 62 bits of the row id."""

    def __init__(self, salt: int) -> None:
        self._prefix = f"{salt >> 28:08x}-{salt >> 12 & 0xFFFF:04x}-8{salt & 0xFFF:03x}-"

    def text(self, row_id: int) -> str:
        """The message id of a row."""
        tail = f"{_VARIANT | row_id:016x}"
        return f"{self._prefix}{tail[:4]}-{tail[4:]}"

    def row_id(self, text: str) -> int | None:
        """The row a message was first stored in; None when the id is not of this file."""
        if _TEXT.fullmatch(text) is None or not text.startswith(self._prefix):
            return None
        return int(text[19:].replace("-", ""), 16) & MAX_ID


def channel(queue_id: int) -> str:
    """Where changes of a queue are heard."""
    return f"q{queue_id}"


def receipt(row_id: int, receives: int) -> str:
    """The proof of one receive: the receive count is the fencing token."""
    return f"{row_id}-{receives}"


def read_receipt(text: str) -> tuple[int, int]:
    """The row and receive count of a receipt; (-1, -1), which is nobody's, when it is not ours."""
    match = _RECEIPT.fullmatch(text)
    return (-1, -1) if match is None or int(match[1]) > MAX_ID else (int(match[1]), int(match[2]))
