"""SEC1: nothing that is read can become code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SOURCES = sorted((Path(__file__).parents[2] / "src").rglob("*.py"))
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
BUILTINS = {"eval", "exec", "compile", "__import__"}


def dangers(source: str) -> list[str]:
    """What in the source could turn data into code."""
    return [found for node in ast.walk(ast.parse(source)) if (found := _danger(node)) is not None]


def _danger(node: ast.AST) -> str | None:
    if isinstance(node, ast.Import):
        return next((alias.name for alias in node.names if alias.name.split(".")[0] in MODULES), None)
    if isinstance(node, ast.ImportFrom):
        return node.module if str(node.module).split(".")[0] in MODULES else None
    if isinstance(node, ast.Call):
        return _dangerous_call(node)
    return None


def _dangerous_call(call: ast.Call) -> str | None:
    name = ast.unparse(call.func)
    if name in BUILTINS or name in ("yaml.load", "yaml.unsafe_load", "os.system", "os.popen"):
        return name
    shell = [k for k in call.keywords if k.arg == "shell" and not _is_false(k.value)]
    return f"{name}(shell=True)" if shell else None


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def test_sec01_no_source_turns_data_into_code() -> None:
    found = {str(path): dangers(path.read_text()) for path in SOURCES}

    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "import shelve as s",
        "eval('1')",
        "exec(code)",
        "yaml.load(text)",
        "subprocess.run(line, shell=True)",
        "subprocess.run(line, shell=flag)",
    ],
)
def test_the_check_sees_what_it_forbids(source: str) -> None:
    assert len(dangers(source)) == 1
