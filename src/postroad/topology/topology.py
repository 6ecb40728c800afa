"""The topology: everything that a deployment needs in one value, and its form as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from postroad.errors import InvalidMessage, InvalidName, PostroadError, TopologyError
from postroad.events import checked_bytes, repeated_key
from postroad.queues import QueueSpec
from postroad.settings import nearest
from postroad.topology.declarations import BY_KIND, DECLARATIONS, Component, QueueDecl, Resource

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """An error or a doubtful setting.

    Attributes:
        code: What was found, in one word.
        severity: "error" or "warning".
        target: The resource that has it.
        message: What is wrong.
        remedy: What to do.
    """

    code: str
    severity: Severity
    target: str
    message: str
    remedy: str


def refuse(findings: Sequence[Finding]) -> TopologyError:
    """Return the error that lists all findings, the errors first."""
    ordered = sorted(findings, key=lambda finding: finding.severity != "error")
    errors = [finding for finding in ordered if finding.severity == "error"]
    return TopologyError(
        "; ".join(f"{finding.code}: {finding.message}" for finding in ordered),
        findings=ordered,
        codes=[finding.code for finding in errors],
        field=errors[0].target,
        remedy=f"{errors[0].remedy} Nothing was changed.",
    )


def _decode(text: str | bytes) -> Any:
    try:
        data = checked_bytes(text, 10_485_760)
        found, repeated = msgspec.json.decode(data), repeated_key(data)
    except (msgspec.DecodeError, InvalidMessage, RecursionError, ValueError) as error:
        raise TopologyError(f"$: the topology is not JSON: {error}", field="$") from error
    if repeated is not None:
        raise TopologyError(f"$: the key {repeated!r} is given twice", field=repeated)
    return found


def _each(document: Mapping[str, Any], key: str, read: Any) -> Iterator[Any]:
    entries = document.get(key, [])
    if not isinstance(entries, list):
        raise TopologyError(f"$.{key}: is not a list", field=f"$.{key}")
    for index, entry in enumerate(entries):
        yield read(_object(entry, f"$.{key}[{index}]"), f"$.{key}[{index}]")


def _resource(entry: dict[str, Any], path: str) -> Any:
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in BY_KIND:
        where = f"{path}.kind"
        raise _unknown(f"{where}: {kind!r} is not a kind of resource", where, kind, BY_KIND, "kinds")
    declared = BY_KIND[kind]
    settings = {key: value for key, value in entry.items() if key != "kind"}
    _check_fields(declared, settings, path, besides=("kind",))
    if declared is QueueDecl:
        settings["spec"] = _spec(settings.get("spec"), f"{path}.spec")
    return _convert(settings, declared, path)


def _component(entry: dict[str, Any], path: str) -> Any:
    _check_fields(Component, entry, path)
    return _convert(entry, Component, path)


def _spec(value: Any, path: str) -> QueueSpec:
    """Return the settings of a queue, or raise the error of `QueueSpec` under the codes of lint."""
    settings = _object(value, path)
    _check_fields(QueueSpec, settings, path)
    try:
        spec: QueueSpec = _convert(settings, QueueSpec, path)
    except TopologyError:
        raise
    except PostroadError as error:
        where = f"{path}.{error.field}" if error.field else path
        code = _code(settings, error)
        if code is None:
            raise TopologyError(f"{where}: {error}", field=where, remedy=error.remedy) from error
        raise refuse([Finding(code, "error", str(settings.get("name")), f"{where}: {error}", error.remedy)]) from error
    return spec


def _code(settings: Mapping[str, Any], error: PostroadError) -> str | None:
    if error.field == "dead_letter" and settings.get("dead_letter") == settings.get("name"):
        return "dlq-cycle"
    if isinstance(error, InvalidName):
        return "name-invalid"
    return "fifo-mismatch" if error.field == "dead_letter" else None


def _check_fields(declared: type[Any], value: Mapping[str, Any], path: str, besides: tuple[str, ...] = ()) -> None:
    """Raise `TopologyError` for a key that the declaration, or one inside it, does not have."""
    hints = get_type_hints(declared)
    names = [field.name for field in dataclasses.fields(declared)]
    _check_keys(value, (*besides, *names), path)
    for name in names:
        inner = next((each for each in get_args(hints[name]) if dataclasses.is_dataclass(each)), None)
        entries = value.get(name)
        if inner is not None and isinstance(entries, list):
            for index, entry in enumerate(entries):
                _check_fields(inner, _object(entry, f"{path}.{name}[{index}]"), f"{path}.{name}[{index}]")  # type: ignore[arg-type]  # a dataclass is a type here


def _check_keys(value: Mapping[str, Any], known: Collection[str], path: str) -> None:
    for key in value:
        if key not in known:
            raise _unknown(f"{path}: {key!r} is not a known key", f"{path}.{key}", key, known, "keys")


def _unknown(text: str, field: str, name: object, known: Collection[str], plural: str) -> TopologyError:
    """Return the error that names the known word that was probably meant, or else lists all of them."""
    near = nearest(name, known) if isinstance(name, str) else None
    remedy = f"The {plural} are {', '.join(known)}." if near is None else f"Write {near!r}."
    return TopologyError(text, field=field, nearest=near, remedy=remedy)


def _object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TopologyError(f"{path}: is not an object", field=path)
    return value


def _convert(value: Any, wanted: Any, path: str) -> Any:
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        text, _, inner = str(error).partition(" - at `$")
        where = path + inner.rstrip("`")
        raise TopologyError(f"{where}: {text}", field=where) from error


@dataclass(frozen=True)
class Topology:
    """Resources, and the components that use them.

    Args:
        name: The name of the topology, which tags every resource that it makes.
        resources: The declarations, in any order.
        components: The programs that use the resources, by default none.
        tags: Tags for every resource, by default none.

    Raises:
        TopologyError: A resource or component is not a declaration. `lint` finds all other errors.

    Example:
        dead, orders = QueueSpec("orders-dlq"), QueueSpec("orders", dead_letter="orders-dlq")
        shop = Topology("shop", (QueueDecl(dead), QueueDecl(orders)), (Component("worker", consumes=("orders",)),))
    """

    name: str
    resources: tuple[Resource, ...]
    components: tuple[Component, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "resources", tuple(self.resources))
        object.__setattr__(self, "components", tuple(self.components))
        for name, wanted in (("resources", DECLARATIONS), ("components", (Component,))):
            for index, each in enumerate(getattr(self, name)):
                if not isinstance(each, wanted):
                    where = f"{name}[{index}]"
                    raise TopologyError(f"{where}: is {type(each).__name__}, not a declaration", field=where)

    def get(self, kind: str, name: str) -> Resource:
        """Return the resource `name` of this `kind`, or raise `KeyError`."""
        return self._index[kind, name]

    def find(self, kind: str, name: str) -> Resource | None:
        """Return the resource `name` of this `kind`, or None."""
        return self._index.get((kind, name))

    def of(self, kind: str) -> tuple[Resource, ...]:
        """Return all resources of this `kind`, in the order of their declaration."""
        return tuple(resource for resource in self.resources if resource.kind == kind)

    def to_json(self) -> str:
        """Return the topology as JSON; `from_json` returns an equal topology for it."""
        document = {
            "name": self.name,
            "tags": dict(self.tags),
            "resources": [{"kind": each.kind, **msgspec.to_builtins(each)} for each in self.resources],
            "components": [msgspec.to_builtins(each) for each in self.components],
        }
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Topology:
        """Return the topology of the JSON `text`, or raise `TopologyError` with the path of the first mistake."""
        document = _object(_decode(text), "$")
        _check_keys(document, ("name", "tags", "resources", "components"), "$")
        for key in ("name", "resources"):
            if key not in document:
                raise TopologyError(f"$: the key {key!r} is missing", field="$")
        return cls(
            name=_convert(document["name"], str, "$.name"),
            tags=_convert(document.get("tags", {}), dict[str, str], "$.tags"),
            resources=tuple(_each(document, "resources", _resource)),
            components=tuple(_each(document, "components", _component)),
        )

    @cached_property
    def _index(self) -> dict[tuple[str, str], Resource]:
        return {(resource.kind, resource.name): resource for resource in self.resources}
