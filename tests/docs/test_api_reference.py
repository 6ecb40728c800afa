"""The API reference is complete: each public package has a page, and each public parameter is documented."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import griffe
import pytest
from tests.docs.test_generated_pages import tool

import postroad

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PACKAGES = [
    each.name for each in iter_modules(postroad.__path__) if hasattr(import_module(f"postroad.{each.name}"), "__all__")
]
PROGRAMS = {"cli", "errors", "up"}
"""Packages with pages of another kind: commands, errors, and what `postroad up` starts."""


@cache
def source() -> griffe.Module:
    """Return our code as the build of the site reads it."""
    extensions = griffe.load_extensions(str(ROOT / "tools" / "griffe_postroad.py"))
    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"], docstring_parser="google", extensions=extensions)
    found = loader.load("postroad")
    loader.resolve_aliases()
    assert isinstance(found, griffe.Module)
    return found


def public(module: griffe.Module) -> Iterator[griffe.Class | griffe.Function]:
    """Yield the classes and functions that a package exports."""
    for name in module.exports or ():
        found = module.members.get(str(name))
        target = found.final_target if isinstance(found, griffe.Alias) else found
        if isinstance(target, griffe.Class | griffe.Function) and target.path.startswith("postroad."):
            yield target


def undocumented(thing: griffe.Class | griffe.Function) -> Iterator[str]:
    """Yield the parameters of a function, or of a class and its methods, about which nothing is said."""
    if isinstance(thing, griffe.Function):
        yield from missing(thing, entries(thing))
        return
    inherited = {name: each.final_target for name, each in thing.inherited_members.items() if name != "__init__"}
    for name, member in {**inherited, **thing.members}.items():
        if isinstance(member, griffe.Function) and name == "__init__":
            yield from missing(member, entries(thing) | entries(member) | fields(thing) | mentions(thing))
        elif isinstance(member, griffe.Function) and not name.startswith(("_", "test_")) and not is_fixture(member):
            yield from missing(member, entries(member) | mentions(member) | explained_elsewhere(thing, member))


def is_fixture(method: griffe.Function) -> bool:
    """Return whether pytest calls the method."""
    return any("fixture" in str(decorator.value) for decorator in method.decorators)


def explained_elsewhere(thing: griffe.Class, method: griffe.Function) -> set[str]:
    """Return what the class says of a constructor's arguments, and what a method or class says that is referred to."""
    found = entries(thing) if "classmethod" in method.labels else set()
    for name in mentions(method) - {method.name}:
        other = thing.members.get(name) or public_classes().get(name)
        if isinstance(other, griffe.Class | griffe.Function):
            found |= entries(other) | fields(other) if isinstance(other, griffe.Class) else entries(other)
    return found


@cache
def public_classes() -> dict[str, griffe.Class]:
    """Return the classes that can be referred to by their names."""
    everything = (each for name in ("", *PACKAGES) for each in public(package_of(name)))
    return {each.name: each for each in everything if isinstance(each, griffe.Class)}


def package_of(name: str) -> griffe.Module:
    found = source()[name] if name else source()
    assert isinstance(found, griffe.Module)
    return found


def missing(function: griffe.Function, documented: set[str]) -> Iterator[str]:
    for parameter in function.parameters:
        name = parameter.name.lstrip("*")
        if name not in ("self", "cls", *documented) and not name.startswith("_"):
            yield f"{function.path}({name})"


def entries(thing: griffe.Object) -> set[str]:
    """Return the parameters that have an entry of their own below `Args:`, and the fields below `Attributes:`."""
    sections = thing.docstring.parse("google", warnings=False) if thing.docstring else []
    return {
        name.strip(" *")
        for section in sections
        if isinstance(section, griffe.DocstringSectionParameters | griffe.DocstringSectionAttributes)
        for entry in section.value
        for name in entry.name.split(",")  # an entry may describe several
    }


def mentions(thing: griffe.Object) -> set[str]:
    """Return the names that the docstring has in backticks, as short docstrings of methods and data do."""
    return set(re.findall(r"`(\w+)`", thing.docstring.value)) if thing.docstring else set()


def fields(thing: griffe.Class) -> set[str]:
    """Return the fields that have a docstring below them."""
    return {name for name, member in thing.members.items() if member.has_docstring}


@pytest.mark.parametrize("package", ["", *PACKAGES])
def test_every_public_parameter_is_documented(package: str) -> None:
    found = [parameter for thing in public(package_of(package)) for parameter in undocumented(thing)]

    assert found == []


def test_every_public_package_has_a_page() -> None:
    assert set(PACKAGES) - PROGRAMS == set(tool("reference_pages").PACKAGES)


def test_private_names_are_shown_as_what_they_stand_for() -> None:
    def shown(path: str) -> dict[str, str]:
        thing = source()[path]
        return {each.name: f"{each.annotation} = {each.default}" for each in thing.parameters}

    assert shown("queues.rules.QueueSpec")["visibility"] == "float = 30"
    assert shown("outbox.dispatching.dispatcher.OutboxDispatcher.stop")["timeout"] == "float = 20.0"
    assert shown("settings.settings.Settings")["port"] == "int = 8787"
    assert shown("settings.notifications.NotificationSettings")["push_queue"] == "str | None = None"


def test_fields_of_keyword_only_structs_are_keyword_only() -> None:
    constructor = source()["journal.states.TaskState.__init__"]

    assert {str(each.kind) for each in constructor.parameters if each.name != "self"} == {"keyword-only"}
