"""SEC15: SQL is written down once as a constant; values are bound, never pasted."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SOURCES = sorted((Path(__file__).parents[2] / "src").rglob("*.py"))
EXECUTING = {"execute", "executemany", "executescript", "fetch", "pragma"}
SQL_WORDS = ("SELECT ", "INSERT ", "UPDATE ", "DELETE ", "CREATE ", "DROP ", "PRAGMA ", "BEGIN", "ATTACH ")


def pasted(source: str) -> list[str]:
    """The places where a statement is built out of values."""
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node) in EXECUTING and node.args]
    built = [ast.unparse(call) for call in calls if _is_built(call.args[0])]
    return built + [ast.unparse(node) for node in ast.walk(tree) if _is_sql_with_values(node)]


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_built(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return _name(node) in ("format", "join", "replace")
    return isinstance(node, ast.JoinedStr | ast.BinOp) and any(isinstance(part, ast.Name) for part in ast.walk(node))


def _is_sql_with_values(node: ast.AST) -> bool:
    """An f-string or `%` or `.format` on SQL text, unless it pastes nothing but our own UPPER_CASE constants."""
    if isinstance(node, ast.JoinedStr):
        values = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        text = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        return _is_sql(text) and not all(_is_constant_name(value) for value in values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return isinstance(node.left, ast.Constant) and _is_sql(str(node.left.value))
    if isinstance(node, ast.Call) and _name(node) == "format" and isinstance(node.func, ast.Attribute):
        return isinstance(node.func.value, ast.Constant) and _is_sql(str(node.func.value.value))
    return False


def _is_sql(text: str) -> bool:
    return text.lstrip().startswith(SQL_WORDS)


def _is_constant_name(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id.lstrip("_").isupper()


def test_sec15_no_statement_is_built_out_of_values() -> None:
    found = {str(path): pasted(path.read_text()) for path in SOURCES}

    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "db.execute(f'SELECT * FROM msg WHERE id = {key}')",
        "db.execute('SELECT * FROM ' + table)",
        "db.execute('SELECT * FROM {}'.format(table))",
        "SQL = 'DELETE FROM %s' % table",
        "statement = f'UPDATE {table} SET a = 1'",
    ],
)
def test_the_check_sees_pasted_values(source: str) -> None:
    assert pasted(source)


@pytest.mark.parametrize("source", ["db.execute(SELECT, (key,))", "SQL = f'SELECT {_COLUMNS} FROM msg'"])
def test_the_check_lets_constants_pass(source: str) -> None:
    assert pasted(source) == []
