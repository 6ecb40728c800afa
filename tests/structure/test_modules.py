"""Every file of the package looks the way a reader expects."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import postroad

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "postroad"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PYTHON_FILES = sorted(
    path for folder in ("src", "tests", "benchmarks", "tools") for path in (ROOT / folder).rglob("*.py")
)
PACKAGES = ["postroad", *(m.name for m in pkgutil.walk_packages(postroad.__path__, "postroad.") if m.ispkg)]
MOST_LINES = 500
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "core", "services", "misc"}


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def constants_then_classes_then_functions(name: str) -> tuple[int, str]:
    """The order in which the linter sorts `__all__`."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_no_name_that_is_loaded_late_is_also_a_module_of_its_package() -> None:
    # Whoever imports the module makes it the attribute of the package, and the late name is never looked up.
    hidden = []
    for path in SOURCES:
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "lazy_names"
        ]
        names = {name for call in calls for text in ast.literal_eval(call.args[1]).values() for name in text.split()}
        hidden += [
            f"{short(path)}: {name}"
            for name in names
            if (path.parent / f"{name}.py").exists() or (path.parent / name).is_dir()
        ]

    assert hidden == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [short(path) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]

    assert silent == []


def test_every_file_stays_short() -> None:
    long = [short(path) for path in PYTHON_FILES if len(path.read_text().splitlines()) > MOST_LINES]

    assert long == [], f"above {MOST_LINES} lines; cut them in two"


def test_paths_are_made_of_words_that_mean_something() -> None:
    empty = [short(path) for path in PYTHON_FILES if EMPTY_NAMES & {*path.parent.parts[len(ROOT.parts) :], path.stem}]

    assert empty == []


def test_nothing_is_left_to_do_in_comments() -> None:
    notes = re.compile(r"#.*\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")
    left = [short(path) for path in PYTHON_FILES if notes.search(path.read_text())]

    assert left == []


@pytest.mark.parametrize("name", PACKAGES)
def test_the_contents_of_a_folder_are_complete_and_sorted(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = importlib.import_module(name)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("postroad")
        for alias in node.names
        # `name as name` is for other folders of the package only, and `*` is listed by a rule.
        if alias.asname != alias.name != "*"
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    public = {entry for entry in imported - used if not entry.startswith("_")}
    listed = list(getattr(module, "__all__", []))

    assert listed == sorted(listed, key=constants_then_classes_then_functions)
    assert public <= set(listed), f"missing from __all__: {sorted(public - set(listed))}"
    assert all(hasattr(module, entry) for entry in listed)


def imports_at_once(tree: ast.AST) -> Iterator[ast.ImportFrom]:
    """Yield the imports that run when a module is loaded, which leaves out those inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports_at_once(node)


def test_folders_import_each_other_through_their_contents() -> None:
    past = [
        f"{short(path)}: from {node.module}"
        for path in SOURCES
        if path != PACKAGE / "__init__.py"
        for node in imports_at_once(ast.parse(path.read_text()))
        if (parts := str(node.module).split("."))[0] == "postroad"
        and len(parts) > 2
        and parts[1] != path.relative_to(PACKAGE).parts[0]
    ]

    assert past == [], "import from the folder; only an import inside a function may go past its contents"
