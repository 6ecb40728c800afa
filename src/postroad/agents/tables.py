"""The tables, queues and stream of agents: their names and keys, calls to DynamoDB, and a check of the setup."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from postroad.agents.port import Mover
from postroad.connections import AwsConnection, Make, TableIndex, TableShape, api_name, ask, make_table, translated
from postroad.errors import ConfigurationError, NotPermitted, NotSupported, PostroadError, Throttled
from postroad.queues import QueueSpec
from postroad.settings import table_name

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient

EVENTS_STREAM: Final = "agent-events"
DEAD_QUEUE: Final = "agents-dead.fifo"
REJECTED_QUEUE: Final = "agents-rejected"
BY_SUBSCRIBER: Final = "bySubscriber"
STREAM_SHARDS: Final = 4
STREAM_RETENTION_HOURS: Final = 24
RETENTION_SECONDS: Final = 1_209_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table; `variable` is the environment variable that renames it on AWS."""

    name: str
    variable: str | None
    shape: TableShape


AGENTS: Final = Table(name="Agents", variable="AGENTS_TABLE", shape=TableShape(keys=("agentId",)))
SUBSCRIBERS: Final = Table(
    name="Subscribers",
    variable="SUBSCRIBERS_TABLE",
    shape=TableShape(
        keys=("producerId", "subscriberId"), indexes={BY_SUBSCRIBER: TableIndex(keys=("subscriberId", "producerId"))}
    ),
)
SUBSCRIBER_EVENTS: Final = Table(
    name="SubscriberEvents",
    variable="SUBSCRIBER_EVENTS_TABLE",
    shape=TableShape(keys=("subscriberId", "timestamp"), ttl_attribute="expiresAt", stream_view="NEW_IMAGE"),
)
AGENT_GRANTS: Final = Table(name="AgentGrants", variable=None, shape=TableShape(keys=("producerId", "subscriberId")))
TABLES: Final = (AGENTS, SUBSCRIBERS, SUBSCRIBER_EVENTS, AGENT_GRANTS)


def dead_letters(name: str = DEAD_QUEUE) -> QueueSpec:
    """Return the queue that holds the dead letters of all agents; any queue may put messages there."""
    return QueueSpec(name, fifo=True, retention=RETENTION_SECONDS, dedup_scope="group", content_dedup=True)


def rejects(name: str = REJECTED_QUEUE) -> QueueSpec:
    """Return the queue of records that could not be delivered to any agent."""
    return QueueSpec(name, retention=RETENTION_SECONDS)


def nobody_sends(name: str) -> NotSupported:
    """Return the error for a message that is sent to an agent's queue."""
    why = f'nobody sends to "{name}": events come from the stream'
    return NotSupported(why, remedy="Publish the event under its agent's id, and subscribe this agent to it.")


def queue_name(agent_id: str) -> str:
    return f"agents-{agent_id}.fifo"


MOST_AT_ONCE: Final = 100
RESERVED: Final = {"#state": "state", "#key": "timestamp", "#notes": "notes"}
"""Attributes whose names DynamoDB reserves, and how expressions name them."""
_MISSING: Final = "ResourceNotFoundException"
PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class Tables:
    """The names of the tables here, and calls to DynamoDB with its errors translated."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection
        self._names = {table.name: table_name(table.variable, table.name) for table in TABLES}
        self._known: dict[str, Make] = {_MISSING: _no_table}

    @property
    def client(self) -> DynamoDBClient:
        return self._connection.dynamodb

    def name(self, table: Table) -> str:
        return self._names[table.name]

    def call(self, operation: str, table: Table, **parameters: Any) -> Any:
        with translated(f"DynamoDB {api_name(operation)} on {self.name(table)!r}", self._known):
            return getattr(self.client, operation)(TableName=self.name(table), **parameters)

    def conditional(self, operation: str, table: Table, **parameters: Any) -> Any | None:
        """Call DynamoDB under a condition; return None when the condition did not hold."""
        with translated(f"DynamoDB {api_name(operation)} on {self.name(table)!r}", self._known):
            try:
                return getattr(self.client, operation)(TableName=self.name(table), **parameters)
            except self.client.exceptions.ConditionalCheckFailedException:
                return None

    def update(
        self,
        table: Table,
        key: Mapping[str, Any],
        update: str,
        condition: str,
        values: Mapping[str, Any],
        names: Mapping[str, str] = RESERVED,
    ) -> bool:
        """Update an item under a condition; return whether it held. `names` are those that may stand in either."""
        used = {name: real for name, real in names.items() if name in f"{update} {condition}"}
        done = self.conditional(
            "update_item",
            table,
            Key=key,
            UpdateExpression=update,
            ConditionExpression=condition,
            ExpressionAttributeValues=values,
            **({"ExpressionAttributeNames": used} if used else {}),
        )
        return done is not None

    def item(self, table: Table, key: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Read one item consistently; return None when there is none."""
        found: Mapping[str, Any] | None = self.call("get_item", table, Key=key, ConsistentRead=True).get("Item")
        return found

    def transact(self, writes: list[Any]) -> bool:
        """Do all of these writes or none; return False when a condition did not hold."""
        with translated("DynamoDB TransactWriteItems", self._known):
            try:
                self.client.transact_write_items(TransactItems=writes)
            except self.client.exceptions.TransactionCanceledException as error:
                reasons = {reason.get("Code") for reason in error.response.get("CancellationReasons", [])}
                if reasons <= {"None", "ConditionalCheckFailed", "TransactionConflict"}:
                    return False
                raise
        return True

    def batch(self, operation: str, requests: dict[str, Any], *, within: float | None = None) -> Any:
        """Call DynamoDB on several items, in one attempt of at most `within` seconds if that is given.

        The answer says what it did not process.
        """
        with translated(f"DynamoDB {api_name(operation)}", self._known):
            return getattr(self._connection.client("dynamodb", within), operation)(RequestItems=requests)

    def read(self, table: Table, keys: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Read items consistently by their keys, again what was not processed."""
        name = self.name(table)
        for start in range(0, len(keys), MOST_AT_ONCE):
            wanted: Any = list(keys[start : start + MOST_AT_ONCE])
            for pause in PAUSES:
                answer = self.batch("batch_get_item", {name: {"Keys": wanted, "ConsistentRead": True}})
                yield from answer["Responses"].get(name, [])
                wanted = answer.get("UnprocessedKeys", {}).get(name, {}).get("Keys", [])
                if not wanted:
                    break
                time.sleep(pause)
            else:
                raise Throttled(f"DynamoDB table {name!r} does not return all items in time", remedy="Try again.")

    def pages(self, operation: str, table: Table, **parameters: Any) -> Any:
        start: dict[str, Any] = {}
        while True:
            answer = self.call(operation, table, **parameters, **start)
            yield from answer["Items"]
            if not answer.get("LastEvaluatedKey"):
                return
            start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    def describe(self, table: Table) -> Mapping[str, Any] | None:
        """Return the description of the table; None when there is none."""
        name = self.name(table)
        answer = ask(f"DynamoDB table {name!r}", self.client.describe_table, _MISSING, TableName=name)
        found: Mapping[str, Any] | None = None if answer is None else answer["Table"]
        return found

    def provision(self) -> None:
        """Create the tables that are missing, and wait until they can be used."""
        for table in TABLES:
            name = self.name(table)
            with translated(f"DynamoDB table {name!r}"):
                make_table(self.client, name, table.shape)


def _no_table(message: str) -> PostroadError:
    why = f"a table of agents is missing: {message}"
    return ConfigurationError(why, remedy="Make what agents need: `postroad agent provision`.")


_READS: Final = frozenset({"Creating", "Enabling", "Enabled", "Updating"})


class AgentSetup:
    """Checks tables, stream and functions, and changes nothing.

    `runners` returns the runners that leased shards of the stream lately.
    """

    def __init__(self, connection: AwsConnection, stream: str, runners: Callable[[], Collection[str]]) -> None:
        self._connection = connection
        self._tables = Tables(connection)
        self._stream = stream
        self._runners = runners

    def check(self, mover: Mover) -> bool:
        """Return whether agents are set up here.

        Raises:
            ConfigurationError: A table or the stream is missing, or nobody moves events.
        """
        tables = {table.name: _seen(partial(self._tables.describe, table)) for table in TABLES}
        stream = _seen(self._describe_stream)
        if stream is None and tables[AGENTS.name] is None:
            return False
        missing = [f"table {self._tables.name(table)!r}" for table in TABLES if tables[table.name] is None]
        if stream is None:
            missing.append(f"stream {self._stream!r}")
        if missing:
            why = f"agents lack the {' and the '.join(missing)}"
            raise ConfigurationError(why, remedy="Make what is missing with `postroad agent provision`.")
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
        """Return whether a function reads the stream; True if these credentials may not know."""
        if arn is None:
            return False
        try:
            with translated(f"triggers of {arn!r}"):
                answer = self._connection.functions.list_event_source_mappings(EventSourceArn=arn)
        except NotPermitted:
            return True
        return any(each.get("State") in _READS for each in answer["EventSourceMappings"])

    def _describe_stream(self) -> Mapping[str, Any] | None:
        look = self._connection.kinesis.describe_stream_summary
        answer = ask(f"Kinesis stream {self._stream!r}", look, _MISSING, StreamName=self._stream)
        found: Mapping[str, Any] | None = None if answer is None else answer["StreamDescriptionSummary"]
        return found


def _seen(look: Callable[[], Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
    """Return what is there; what these credentials may not look at counts as there."""
    try:
        return look()
    except NotPermitted:
        return {}
