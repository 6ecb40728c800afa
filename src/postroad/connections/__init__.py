"""Connections to AWS and to databases of the user's own: drivers are opened and their errors translated here."""

from typing import TYPE_CHECKING

from postroad.connections.aws import AwsConnection as AwsConnection
from postroad.connections.aws_calls import (
    ATTEMPTS as ATTEMPTS,
    THROTTLED as THROTTLED,
    Again as Again,
    Entry as Entry,
    Make as Make,
    api_name as api_name,
    ask as ask,
    deliver as deliver,
    pages as pages,
    refused as refused,
    short_code as short_code,
    translated as translated,
    was_unsure as was_unsure,
    watch as watch,
)
from postroad.connections.aws_resources import (
    BILLING as BILLING,
    StreamView as StreamView,
    TableIndex as TableIndex,
    TableShape as TableShape,
    expiry_of as expiry_of,
    key_names as key_names,
    make_queue as make_queue,
    make_stream as make_stream,
    make_table as make_table,
)
from postroad.connections.aws_rights import (
    CONSUME as CONSUME,
    FIND as FIND,
    OBSERVE as OBSERVE,
    SEND as SEND,
    Statement as Statement,
    allowed as allowed,
    document as document,
)
from postroad.connections.database import (
    AsyncCaller as AsyncCaller,
    Caller as Caller,
    Database as Database,
    Dialect as Dialect,
    Row as Row,
    Session as Session,
    Translation as Translation,
    check_identifier as check_identifier,
    dialect_of as dialect_of,
    file_database as file_database,
    in_async_transaction as in_async_transaction,
    in_transaction as in_transaction,
    marked as marked,
    path_of as path_of,
    postgres_database as postgres_database,
)
from postroad.lazy import lazy_names

if TYPE_CHECKING:
    from postroad.connections.application_file import (
        ApplicationFile as ApplicationFile,
        FileSession as FileSession,
        FileState as FileState,
        application_file_state as application_file_state,
        engine_file_state as engine_file_state,
    )
    from postroad.connections.postgres import PostgresDatabase as PostgresDatabase, shares_servers as shares_servers
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "postroad.connections.application_file": (
                "ApplicationFile FileSession FileState application_file_state engine_file_state"
            ),
            "postroad.connections.postgres": "PostgresDatabase shares_servers",
        },
    )
