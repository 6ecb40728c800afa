"""Finding out whether a pooler stands before PostgreSQL that shares its connections among clients."""

from __future__ import annotations

from contextlib import closing
from typing import Final

import psycopg

from postroad.connections.database import Row
from postroad.connections.postgres import PostgresDatabase

_SERVER: Final = b"SELECT pg_backend_pid()"


def shares_servers(database: PostgresDatabase) -> bool:
    """Whether successive transactions of one connection may run in different processes of the server.

    A pooler at rest hands out the same process again and again, so a second connection holds on to one meanwhile.
    """
    try:
        with closing(database.connect()) as one, closing(database.connect()) as other:
            before = {_server(one), _server(one)}
            with other.transaction():
                held = _server(other)
                # A pool of one has nothing left for the first connection and would let it wait.
                return len(before) > 1 or held in before or _server(one) not in before
    except psycopg.Error as error:
        raise database.translate(error) from error


def _server(connection: psycopg.Connection[Row]) -> int:
    [pid] = connection.execute(_SERVER).fetchall()[0]
    return int(pid)
