"""How the API reference reads our code: examples of docstrings are code, and frozen data shows its constructor."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^(?P<indent> *)Example:\n(?P<code>(?:\n|(?P=indent) {4}.*\n?)+)", re.MULTILINE)
_NO_FIELD = ("ClassVar", "Final")


class PostroadExtension(griffe.Extension):
    """Fences the code below `Example:`, and adds the constructor that `msgspec.Struct` makes at run time."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of anything that has one."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Add a constructor to a Struct that has none."""
        if any(str(base).rpartition(".")[2] == "Struct" for base in cls.bases) and "__init__" not in cls.members:
            cls.set_member("__init__", constructor(cls))


def constructor(cls: griffe.Class) -> griffe.Function:
    """Return the constructor with a parameter for each field of the class."""
    fields = [
        griffe.Parameter(
            name,
            annotation=each.annotation,
            kind=griffe.ParameterKind.positional_or_keyword,
            default=each.value,
            docstring=each.docstring,
        )
        for name, each in cls.members.items()
        if isinstance(each, griffe.Attribute) and not name.startswith("_") and is_field(each)
    ]
    itself = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    return griffe.Function("__init__", parameters=griffe.Parameters(itself, *fields), lineno=cls.lineno)


def is_field(attribute: griffe.Attribute) -> bool:
    """Return whether an attribute of a class is a parameter of its constructor."""
    annotation = str(attribute.annotation or "")
    return bool(annotation) and not annotation.startswith(_NO_FIELD) and "property" not in attribute.labels


def _fenced(found: re.Match[str]) -> str:
    indent = found["indent"]
    code = "\n".join(line.removeprefix(f"{indent}    ") for line in found["code"].strip("\n").splitlines())
    return f"{indent}**Example**\n\n{indent}```python\n{code}\n{indent}```\n"
