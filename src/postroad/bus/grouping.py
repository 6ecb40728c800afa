"""Which group an event belongs to, so that what must stay in order does."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from string import Template

from postroad.errors import ConfigurationError
from postroad.events import Envelope

FIELDS = ("session_id", "key", "tenant_id", "event_type", "publisher_id", "request_id")
_LEGAL = re.compile(r"[!-~]{1,128}")


def check_template(text: object) -> None:
    """Refuse a `message_group_id` that names something no event has."""
    names = ", ".join(f"${{{name}}}" for name in FIELDS)
    template = Template(text) if isinstance(text, str) and text else None
    if template is None or not template.is_valid() or not set(template.get_identifiers()) <= set(FIELDS):
        raise ConfigurationError(
            f"message_group_id: {text!r} is not a template over {names}", field="message_group_id",
            remedy=f"Use some of {names}, or a fixed text.",
        )  # fmt: skip


def group_of(template: str | None, envelope: Envelope, event: object, *, fifo: bool) -> str | None:
    """The group id to send: from the template, on FIFO else by key; None where a standard queue needs none."""
    if template is None and not fifo:
        return None
    values = _values(envelope, event)
    instead = values["request_id"] or envelope.publisher_id
    filled = {name: value or instead for name, value in values.items()}
    return legal(Template("${key}" if template is None else template).substitute(filled))


def _values(envelope: Envelope, event: object) -> Mapping[str, str | None]:
    request_id = getattr(event, "request_id", None)
    return {
        "session_id": envelope.session_id,
        "key": envelope.key,
        "tenant_id": envelope.tenant_id,
        "event_type": envelope.event_type,
        "publisher_id": envelope.publisher_id,
        "request_id": None if request_id is None else str(request_id),
    }


def legal(group: str) -> str:
    """The group id, or its hash where SQS would refuse it."""
    if _LEGAL.fullmatch(group):
        return group
    return hashlib.sha256(group.encode("utf-8", "surrogatepass")).hexdigest()
