"""The tables of agents on DynamoDB, made when they are missing, and whether everything that agents need is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from postroad.agents.port import Mover
from postroad.agents.tables import AGENTS, SUBSCRIBER_EVENTS, TABLES, Table
from postroad.connections import AwsConnection, Make, make_table, translated
from postroad.errors import ConfigurationError, NotPermitted, PostroadError, Throttled
from postroad.settings import table_name

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient


MOST_KEYS: Final = 100
MOST_AT_ONCE: Final = 100
PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class Tables:
    """The names of the tables here, and calls to DynamoDB in Postroad's words."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection
        self._names = {table.name: table_name(table.variable, table.name) for table in TABLES}
        self._known: dict[str, Make] = {"ResourceNotFoundException": _no_table}

    @property
    def client(self) -> DynamoDBClient:
        return self._connection.dynamodb

    def name(self, table: Table) -> str:
        """What the table is called here."""
        return self._names[table.name]

    def call(self, operation: str, table: Table, **parameters: Any) -> Any:
        """Call DynamoDB on one table."""
        with translated(f"DynamoDB {operation} on {self.name(table)!r}", self._known):
            return getattr(self.client, operation)(TableName=self.name(table), **parameters)

    def conditional(self, operation: str, table: Table, **parameters: Any) -> Any | None:
        """Call DynamoDB under a condition; None when it did not hold."""
        with translated(f"DynamoDB {operation} on {self.name(table)!r}", self._known):
            try:
                return getattr(self.client, operation)(TableName=self.name(table), **parameters)
            except self.client.exceptions.ConditionalCheckFailedException:
                return None

    def transact(self, writes: list[Any]) -> bool:
        """Do all of these writes or none; False when a condition did not hold."""
        with translated("DynamoDB transact_write_items", self._known):
            try:
                self.client.transact_write_items(TransactItems=writes)
            except self.client.exceptions.TransactionCanceledException as error:
                reasons = {reason.get("Code") for reason in error.response.get("CancellationReasons", [])}
                if reasons <= {"None", "ConditionalCheckFailed", "TransactionConflict"}:
                    return False
                raise
        return True

    def batch(self, operation: str, requests: dict[str, Any]) -> Any:
        """Call DynamoDB on several items; what it did not process is in the answer."""
        with translated(f"DynamoDB {operation}", self._known):
            return getattr(self.client, operation)(RequestItems=requests)

    def write_within(self, seconds: float, requests: dict[str, Any]) -> Any:
        """Write several items in one attempt of at most `seconds`; what was not processed is in the answer."""
        with translated("DynamoDB batch_write_item", self._known):
            return self._connection.dynamodb_within(seconds).batch_write_item(RequestItems=requests)

    def read(self, table: Table, keys: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Items by their keys, as the last writes left them; what was not processed is asked for again."""
        name = self.name(table)
        for start in range(0, len(keys), MOST_KEYS):
            wanted: Any = list(keys[start : start + MOST_KEYS])
            for pause in PAUSES:
                answer = self.batch("batch_get_item", {name: {"Keys": wanted, "ConsistentRead": True}})
                yield from answer["Responses"].get(name, [])
                wanted = answer.get("UnprocessedKeys", {}).get(name, {}).get("Keys", [])
                if not wanted:
                    break
                time.sleep(pause)
            else:
                raise Throttled(f"DynamoDB table {name!r} gives less than it is asked for", remedy="Try again.")

    def pages(self, operation: str, table: Table, **parameters: Any) -> Any:
        """All items of a query or scan."""
        start: dict[str, Any] = {}
        while True:
            answer = self.call(operation, table, **parameters, **start)
            yield from answer["Items"]
            if not answer.get("LastEvaluatedKey"):
                return
            start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    def describe(self, table: Table) -> Mapping[str, Any] | None:
        """What DynamoDB says of the table; None when there is none."""
        with translated(f"DynamoDB table {self.name(table)!r}"):
            try:
                return self.client.describe_table(TableName=self.name(table))["Table"]
            except self.client.exceptions.ResourceNotFoundException:
                return None

    def provision(self) -> None:
        """Make what is missing, and wait until it can be used."""
        for table in TABLES:
            name = self.name(table)
            with translated(f"DynamoDB table {name!r}"):
                make_table(self.client, name, table.shape)


def _no_table(words: str) -> PostroadError:
    return ConfigurationError(
        f"a table of agents is missing: {words}",
        remedy="Make it with agents.provision() or `postroad agent provision`.",
    )


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
