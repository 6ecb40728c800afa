"""What httpx and its parts would write into the log: addresses with device tokens, headers with credentials."""

from __future__ import annotations

import logging
import threading
from typing import Final

THREAD_NAME: Final = "postroad-push"
_LOGGERS: Final = (
    "httpx",
    "httpcore.connection",
    "httpcore.http11",
    "httpcore.http2",
    "httpcore.proxy",
    "hpack.hpack",
    "hpack.table",
)


def silence_libraries() -> None:
    """Keep the libraries quiet in the threads that talk to providers, and nowhere else."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_spoken_elsewhere)


def _spoken_elsewhere(_: logging.LogRecord) -> bool:
    return threading.current_thread().name != THREAD_NAME
