"""The rights that each role needs on PostgreSQL, as SQL."""

from __future__ import annotations

from typing import Final, Literal, get_args

from postroad.connections.database import check_identifier
from postroad.errors import ConfigurationError
from postroad.outbox.schema import Names

Role = Literal["producer", "dispatcher", "operator"]
_PRODUCER: Final = """
GRANT USAGE ON SCHEMA {schema} TO "{to}";
GRANT INSERT ON {outbox} TO "{to}";
"""
_DISPATCHER: Final = """
GRANT USAGE ON SCHEMA {schema} TO "{to}";
GRANT SELECT, UPDATE ON {outbox}, {meta} TO "{to}";
GRANT DELETE ON {outbox} TO "{to}";
GRANT SELECT, INSERT, UPDATE, DELETE ON {gaps}, {parked} TO "{to}";
GRANT USAGE, SELECT, UPDATE ON SEQUENCE {token}, {wake} TO "{to}";
"""
_OPERATOR: Final = (
    _DISPATCHER
    + """GRANT SELECT, INSERT ON {audit} TO "{to}";
"""
)
_GRANTS: Final[dict[Role, str]] = {"producer": _PRODUCER, "dispatcher": _DISPATCHER, "operator": _OPERATOR}


def grants(names: Names, role: Role, to: str) -> str:
    """The statements that let the database role `to` do what the role needs, and no more."""
    if role not in get_args(Role):
        raise ConfigurationError(f"role: {role!r} is none of {', '.join(get_args(Role))}", field="role")
    check_identifier(to, "to")
    return names.fill(_GRANTS[role].replace("{to}", to)).lstrip()
