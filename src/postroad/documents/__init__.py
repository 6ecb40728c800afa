"""Documents: the JSON that the CLI prints and the HTTP API answers, built in one place."""

from postroad.documents.journal import entity_of, journal_item, moment_of, timeline
from postroad.documents.problems import entry_problem, problem, remedy
from postroad.documents.queues import (
    delivery,
    open_queue,
    peeked,
    queue_detail,
    queue_not_found,
    queue_row,
    redrive_report,
    settings_document,
    sources,
)
from postroad.settings.names import nearest

__all__ = [
    "delivery",
    "entity_of",
    "entry_problem",
    "journal_item",
    "moment_of",
    "nearest",
    "open_queue",
    "peeked",
    "problem",
    "queue_detail",
    "queue_not_found",
    "queue_row",
    "redrive_report",
    "remedy",
    "settings_document",
    "sources",
    "timeline",
]
