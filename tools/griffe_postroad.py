"""How the API reference reads our code, so that signatures and tables show what a caller has to know."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^(?P<indent> *)Example:\n(?P<code>(?:\n|(?P=indent) {4}.*\n?)+)", re.MULTILINE)
_NO_FIELD = ("ClassVar", "Final")


class PostroadExtension(griffe.Extension):
    """Fences the code below `Example:`, adds the constructors of Structs, and leaves out what is private.

    Arguments that a docstring explains and the signature does not name, such as those that `**options` takes, are shown
    as optional. The bounds of a type, `Annotated[int, Meta(ge=1)]`, are left to the text; a private name of a type or a
    default is replaced by what it stands for.
    """

    def on_attribute(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Change the docstring and the type of an attribute; those of classes are changed with their class."""
        _fence(attr)
        attr.annotation = unbounded(attr.annotation, attr.module)

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Change the docstring and the parameters of a function."""
        _fence(func)
        _simplify(func)
        _mark_optional(func)

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Change the docstring and the constructor of a class; a Struct gets one if it has none."""
        if any(str(base).rpartition(".")[2] == "Struct" for base in cls.bases) and "__init__" not in cls.members:
            cls.set_member("__init__", constructor(cls))
        for member in cls.members.values():
            if isinstance(member, griffe.Attribute):
                member.annotation = unbounded(member.annotation, cls.module)
                member.value = default_of(member.value, cls.module)
            elif isinstance(member, griffe.Function):
                _simplify(member)
        _fence(cls)
        _mark_optional(cls)

    def on_module(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        """Change the docstring of a module."""
        _fence(mod)


def unbounded(annotation: griffe.Expr | str | None, module: griffe.Module) -> griffe.Expr | str | None:
    """Return an annotation of a module without what `Annotated` adds to it, and without private names."""
    annotation = public(annotation, module)
    if isinstance(annotation, griffe.ExprBinOp):
        annotation.left = unbounded(annotation.left, module) or ""
        annotation.right = unbounded(annotation.right, module) or ""
    if isinstance(annotation, griffe.ExprSubscript):
        if str(annotation.left) != "Annotated":
            annotation.slice = unbounded(annotation.slice, module) or ""
        elif isinstance(annotation.slice, griffe.ExprTuple):
            return unbounded(annotation.slice.elements[0], module)
    if isinstance(annotation, griffe.ExprTuple):
        annotation.elements = [unbounded(each, module) or "" for each in annotation.elements]
    return annotation


def public(value: griffe.Expr | str | None, module: griffe.Module) -> griffe.Expr | str | None:
    """Return what a private name of the module stands for, and any other expression as it is."""
    named = module.members.get(str(value)) if str(value).startswith("_") else None
    return named.value if isinstance(named, griffe.Attribute) and named.value is not None else value


def default_of(value: griffe.Expr | str | None, module: griffe.Module) -> griffe.Expr | str | None:
    """Return the argument `default` of a field's call to a private function, and any other value as it is."""
    if not isinstance(value, griffe.ExprCall):
        return value
    called = module.members.get(str(value.function))
    if not isinstance(called, griffe.Function) or "default" not in called.parameters:
        return value
    for parameter, argument in zip(called.parameters, value.arguments, strict=False):
        if isinstance(argument, griffe.ExprKeyword) and argument.name == "default":
            return argument.value
        if parameter.name == "default" and not isinstance(argument, griffe.ExprKeyword):
            return argument
    return None


def constructor(cls: griffe.Class) -> griffe.Function:
    """Return the constructor with a parameter for each field of the class."""
    either, named = griffe.ParameterKind.positional_or_keyword, griffe.ParameterKind.keyword_only
    fields = [
        griffe.Parameter(
            name,
            annotation=each.annotation,
            kind=named if cls.keywords.get("kw_only") == "True" else either,
            default=each.value,
            docstring=each.docstring,
        )
        for name, each in cls.members.items()
        if isinstance(each, griffe.Attribute) and not name.startswith("_") and is_field(each)
    ]
    itself = griffe.Parameter("self", kind=either)
    return griffe.Function("__init__", parameters=griffe.Parameters(itself, *fields), lineno=cls.lineno)


def is_field(attribute: griffe.Attribute) -> bool:
    """Return whether an attribute of a class is a parameter of its constructor."""
    annotation = str(attribute.annotation or "")
    return bool(annotation) and not annotation.startswith(_NO_FIELD) and "property" not in attribute.labels


def _fence(thing: griffe.Object) -> None:
    if thing.docstring is not None:
        thing.docstring.value = _EXAMPLE.sub(_fenced, thing.docstring.value)


def _simplify(function: griffe.Function) -> None:
    """Leave out bounds of types, private names and private parameters."""
    for parameter in list(function.parameters):
        parameter.annotation = unbounded(parameter.annotation, function.module)
        parameter.default = default_of(public(parameter.default, function.module), function.module)
        if parameter.name.startswith("_"):
            del function.parameters[parameter.name]


def _mark_optional(thing: griffe.Object) -> None:
    """Let the table say `optional` of entries that the signature does not name."""
    for section in thing.docstring.parsed if thing.docstring else ():
        if isinstance(section, griffe.DocstringSectionParameters):
            for entry in section.value:
                if entry.annotation is None and entry.value is None:
                    entry.value = "optional"


def _fenced(found: re.Match[str]) -> str:
    indent = found["indent"]
    code = "\n".join(line.removeprefix(f"{indent}    ") for line in found["code"].strip("\n").splitlines())
    return f"{indent}**Example**\n\n{indent}```python\n{code}\n{indent}```\n"
