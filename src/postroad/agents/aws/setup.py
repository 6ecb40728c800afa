"""Whether everything that agents need on AWS is there, and whether somebody moves their events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

from postroad.agents.aws.tables import Tables
from postroad.agents.port import Mover
from postroad.agents.tables import AGENTS, SUBSCRIBER_EVENTS, TABLES
from postroad.connections.aws import AwsConnection
from postroad.connections.aws_errors import translated
from postroad.errors import ConfigurationError, NotPermitted

_READS: Final = frozenset({"Creating", "Enabling", "Enabled", "Updating"})


class AgentSetup:
    """Looks at tables, stream and functions, and changes nothing."""

    def __init__(self, connection: AwsConnection, stream: str, runners: Callable[[], Collection[str]]) -> None:
        """`runners` tells which runners asked for shards of the stream lately."""
        self._connection = connection
        self._tables = Tables(connection)
        self._stream = stream
        self._runners = runners

    def check(self, mover: Mover) -> bool:
        """Whether agents are set up here; `ConfigurationError` names what is missing, or that nobody moves events."""
        tables = {table.name: _told(partial(self._tables.describe, table)) for table in TABLES}
        stream = _told(self._describe_stream)
        if stream is None and tables[AGENTS.name] is None:
            return False
        missing = [f"table {self._tables.name(table)!r}" for table in TABLES if tables[table.name] is None]
        if stream is None:
            missing.append(f"stream {self._stream!r}")
        if missing:
            raise ConfigurationError(
                f"agents lack the {' and the '.join(missing)}",
                remedy="Make what is missing with `postroad agent provision`.",
            )
        if mover != "runner":
            self._check_functions(mover, stream or {}, tables[SUBSCRIBER_EVENTS.name] or {})
        return True

    def _check_functions(self, mover: Mover, stream: Mapping[str, Any], rows: Mapping[str, Any]) -> None:
        unread = []
        if stream and not self._is_read(stream["StreamARN"]):
            unread.append(f"stream {self._stream!r}")
        if rows and not self._is_read(rows.get("LatestStreamArn")):
            unread.append(f"stream of table {self._tables.name(SUBSCRIBER_EVENTS)!r}")
        if not unread or (mover == "any" and self._runners()):
            return
        raise ConfigurationError(
            f"nobody moves the events of agents: no function reads the {' or the '.join(unread)}"
            + (", and no runner does" if mover == "any" else ""),
            remedy="Deploy the functions of the topology `agents`, or let `postroad up` or `postroad agent run` do the "
            "work: set functions = false in the table [agents] of postroad.toml (POSTROAD_AGENTS_FUNCTIONS).",
        )

    def _is_read(self, arn: str | None) -> bool:
        """Whether a function reads the stream, as far as these credentials may know."""
        if arn is None:
            return False
        try:
            with translated(f"triggers of {arn!r}"):
                answer = self._connection.functions.list_event_source_mappings(EventSourceArn=arn)
        except NotPermitted:
            return True
        return any(each.get("State") in _READS for each in answer["EventSourceMappings"])

    def _describe_stream(self) -> Mapping[str, Any] | None:
        client = self._connection.kinesis
        with translated(f"Kinesis stream {self._stream!r}"):
            try:
                return client.describe_stream_summary(StreamName=self._stream)["StreamDescriptionSummary"]
            except client.exceptions.ResourceNotFoundException:
                return None


def _told(look: Callable[[], Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
    """What is there; nothing is said of what these credentials may not look at, and it counts as there."""
    try:
        return look()
    except NotPermitted:
        return {}
