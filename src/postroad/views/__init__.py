"""Documents: the JSON that the CLI prints and the HTTP API answers, built in one place."""

from postroad.settings.names import nearest
from postroad.views.agents import (
    agent_dead_letter,
    agent_delivery,
    agent_document,
    agent_row,
    lane_stats,
    listening,
    published,
    registered,
)
from postroad.views.journal import entity_of, event_item, journal_item, moment_of, timeline
from postroad.views.problems import entry_problem, problem, remedy
from postroad.views.queues import (
    delivery,
    failure_groups_document,
    move_task,
    open_queue,
    overview_row,
    peeked,
    queue_detail,
    queue_not_found,
    queue_row,
    redrive_report,
    settings_document,
)
from postroad.views.tasks import submitted, task_document

__all__ = [
    "agent_dead_letter",
    "agent_delivery",
    "agent_document",
    "agent_row",
    "delivery",
    "entity_of",
    "entry_problem",
    "event_item",
    "failure_groups_document",
    "journal_item",
    "lane_stats",
    "listening",
    "moment_of",
    "move_task",
    "nearest",
    "open_queue",
    "overview_row",
    "peeked",
    "problem",
    "published",
    "queue_detail",
    "queue_not_found",
    "queue_row",
    "redrive_report",
    "registered",
    "remedy",
    "settings_document",
    "submitted",
    "task_document",
    "timeline",
]
