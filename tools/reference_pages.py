"""Write the pages of docs/reference from the code: commands, routes, settings, log lines, metrics, public names."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

import postroad

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
_MADE = "This page is made by `make reference`."


def pages() -> dict[Path, str]:
    """Return the content of each page."""
    made = {"cli": _cli(), "http": _http(), "settings": _settings(), "telemetry": _telemetry(), **_api()}
    return {FOLDER / f"{name}.md": text for name, text in made.items()}


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


_CLI = """# Command line

Every command takes the shared options `--url`, `--config`, `--json` and `--no-color`, before or after its name. The
default of an option is in parentheses, with the least and the greatest value that it accepts. Exit code 0 means
success, 1 a negative result, 2 that the command was refused and nothing changed, 3 that something it needs cannot be
reached, and 130 that it was interrupted. `postroad COMMAND --help` shows the same as this page. {made}

"""


def _cli() -> str:
    from postroad.cli.app import program

    shared = {option.name for option in program().params}
    return _CLI.format(made=_MADE) + "\n".join(_verb(*each, shared) for each in _verbs(program(), "postroad"))


def _verbs(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    if (nested := getattr(command, "commands", None)) is None:
        yield path, command
        return
    for name, each in nested.items():
        yield from _verbs(each, f"{path} {name}")


def _verb(path: str, command: Any, shared: set[str]) -> str:
    from postroad.cli.help import meaning

    example = str(command.epilog or "").rpartition("Example:")[2].strip()
    rows = [
        (_parameter(each), meaning(each))
        for each in command.params
        if each.name not in shared and not getattr(each, "hidden", False)
    ]
    options = _table(("argument or option", "meaning"), rows) if rows else ""
    return f"## {path}\n\n{_paragraphs(command.help)}\n\n```console\n$ {example or path}\n```\n\n{options}"


def _paragraphs(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("\f", "").split("\n\x08", 1)[0].strip()


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
        return f"`{name}`" if parameter.required else f"`[{name}]`"
    flags = " ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
    return flags if parameter.is_flag or not parameter.metavar else f"{flags} `{parameter.metavar}`"


_HTTP = """# HTTP API

`postroad up` serves this API. Send `Authorization: Bearer TOKEN` with every request whose scope is not `open`. An error
is a document `application/problem+json` that names its [error](../errors.md). A `POST` with the header
`Idempotency-Key` can be repeated: within 24 hours a repeat gets the first answer again. Durations are in seconds,
unless a name says otherwise. `GET /schema/openapi.json` returns the same as OpenAPI 3.1. {made}

Besides the statuses below its name, every route may answer 400, 431 and 500, one that needs a token 401, 403, 429 and
503, and one that takes a body 408, 413 and 415.

{answers}

"""


def _http() -> str:
    from postroad.http.app import ROUTES
    from postroad.http.openapi import SAYS, Description

    document = Description(ROUTES).document
    paths, schemas = document["paths"], document["components"]["schemas"]
    found = [(f"{method.upper()} {path}", each) for path, item in paths.items() for method, each in item.items()]
    answers = _table(("status", "meaning"), [(str(status), says) for status, says in SAYS.items()])
    return _HTTP.format(made=_MADE, answers=answers) + "\n".join(_route(*each, schemas) for each in found)


_SHARED_STATUSES = (400, 401, 403, 408, 413, 415, 429, 431, 500, 503)


def _route(title: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    from postroad.http.openapi import SAYS

    scope = operation["x-scope"]
    parts = [f"## {title}\n", f"{operation.get('description', '')} Scope: `{scope}`.\n"]
    if "requestBody" in operation:
        body = operation["requestBody"]["content"]["application/json"]
        parts.append(f"```json\n{msgspec.json.format(msgspec.json.encode(body['example'])).decode()}\n```\n")
        schema = _resolved(body["schema"], schemas)
        if says := schema.get("description"):
            parts.append(f"{inspect.cleandoc(says)}\n")
        parts.append(_table(("field", "value", "default"), _fields(schema, schemas, "")))
    named = [each for each in operation.get("parameters", []) if each["name"] != "Idempotency-Key"]
    if named:
        rows = [(f"`{each['name']}`", each["in"], each.get("description", "")) for each in named]
        parts.append(_table(("parameter", "in", "meaning"), rows))
    answers = [
        (status, each["description"])
        for status, each in operation["responses"].items()
        if int(status) not in _SHARED_STATUSES or each["description"] != SAYS[int(status)]
    ]
    parts.append(_table(("status", "meaning"), sorted(answers)))
    return "\n".join(parts)


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema that a reference names, or the schema itself."""
    for part in (schema, *schema.get("allOf", ())):
        if "$ref" in part:
            found: dict[str, Any] = schemas[part["$ref"].rpartition("/")[2]]
            return found
    return schema


def _fields(schema: dict[str, Any], schemas: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yield the fields of a body, those of objects and lists inside it included."""
    required = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        field = _resolved(each, schemas)
        default = "required" if name in required else _default(each.get("default"))
        yield f"`{prefix}{name}`", _value(field, schemas), default
        inside = _resolved(field.get("items", {}), schemas)
        yield from _fields(inside or field, schemas, f"{prefix}{name}{'[]' if inside else ''}.")


def _default(value: object) -> str:
    if isinstance(value, float):
        value = int(value) if value.is_integer() else value
    return "none" if value in (None, "", [], {}) else f"`{msgspec.json.encode(value).decode()}`"


_PLURALS = {"string": "texts", "object": "objects", "integer": "whole numbers"}


def _value(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Say in words which values a field accepts."""
    if options := [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]:
        return " or ".join(_value(_resolved(each, schemas), schemas) for each in options)
    if "enum" in schema:
        *others, last = (f"`{each}`" for each in schema["enum"])
        return f"{', '.join(others)} or {last}" if others else last
    kind = schema.get("type", "")
    if kind == "array":
        inside = _resolved(schema.get("items", {}), schemas)
        return f"list of {_PLURALS.get(inside.get('type', ''), 'values')}{_bounds(schema, 'minItems', 'maxItems')}"
    if kind == "string":
        return f"text{_bounds(schema, 'minLength', 'maxLength', unit=' characters')}"
    if kind in ("integer", "number"):
        above = f", above {schema['exclusiveMinimum']:,}" if "exclusiveMinimum" in schema else ""
        return f"{'whole number' if kind == 'integer' else kind}{above}{_bounds(schema, 'minimum', 'maximum')}"
    return {"boolean": "`true` or `false`", "object": "object"}.get(kind, "any JSON value")


def _bounds(schema: dict[str, Any], least: str, most: str, unit: str = "") -> str:
    low, high = schema.get(least), schema.get(most)
    if low is not None and high is not None:
        return f", {low:,} to {high:,.0f}{unit}"
    if high is not None:
        return f", at most {high:,.0f}{unit}"
    return "" if low is None else f", at least {low:,}{unit}"


_SETTINGS = """# Settings

The value of a setting is that of its flag, else of its variable, else of the file `postroad.toml` in the working
directory (`--config` names another one), else its default. Times are in seconds, and can be written with a unit, as
`30s`, `5m` or `2h`; in a variable, commas separate the values of a list. `postroad config show` prints every value with
its source, and `postroad config check` validates without starting anything. {made}

"""
_BESIDES = """
## Other variables

Only some processes read these variables, and `postroad.toml` cannot set them. Those of the notification worker are on
[its page](../notifications.md), and `POSTROAD_SQS_…` set the fields of `BusConfig`.

| variable | meaning |
| --- | --- |
| `POSTROAD_ACTOR` | who is recorded in the audit file; otherwise the user of the process |
| `POSTROAD_AUDIT_LOG` | the audit file; otherwise `postroad-audit.jsonl` beside the data |
| `POSTROAD_DEBUG` | with `1`, a failed command prints its traceback |
| `POSTROAD_OUTBOX_DSN` or `PG_DSN` | the database of outbox and inbox |
| `POSTROAD_AGENT_RATE` | events a second that one agent may publish by HTTP, 1000 by default, 0 for any number |
| `POSTROAD_AGENT_POLLS` | polls and streams that may wait for one agent, 8 by default |
| `EVENTS_TTL_DAYS` | days after which the journal forgets an event; unset for never |
| `ALLOWED_TENANTS` | tenants whose events the function `save_event` accepts, with commas between them; unset for all |
"""


def _settings() -> str:
    from postroad.settings import settings as module
    from postroad.settings.settings import KEYS, Settings

    says, default = _field_docs(module, "Settings"), Settings()
    rows = [
        (f"`{key.in_file}` <br> `{key.env}`", _shown(getattr(default, key.name)), says[key.name].replace("\n", " "))
        for key in KEYS
    ]
    return (
        _SETTINGS.format(made=_MADE)
        + _table(("key and variable", "default", "meaning"), rows)
        + _BESIDES
        + _variables()
    )


def _variables() -> str:
    from postroad.settings import environment

    body = ast.parse(inspect.getsource(environment)).body
    named = [
        (value.name, says[0].lower() + says[1:].rstrip("."))
        for name, says in _docs_below(body).items()
        if isinstance(value := getattr(environment, name), environment.Variable)
    ]
    return "".join(f"| `{variable}` | {says} |\n" for variable, says in named)


def _shown(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        value = ", ".join(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def _field_docs(module: Any, name: str) -> dict[str, str]:
    """Return the text below each field of a class."""
    tree = ast.parse(inspect.getsource(module))
    found = next(each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name)
    return _docs_below(found.body)


def _docs_below(body: list[ast.stmt]) -> dict[str, str]:
    found = {}
    for statement, below in pairwise(body):
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
        if isinstance(target, ast.Name) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[target.id] = inspect.cleandoc(str(below.value.value))
    return found


_TELEMETRY = """# Events, metrics, traces and log lines

What Postroad reports about itself: the events that it records about tasks and jobs, the metrics that Prometheus can
collect, the spans of OpenTelemetry, and the lines that it logs. {made}

## Events of tasks and jobs

The journal keeps them (`postroad journal query`, `postroad task history`). With `task_events`, the ends of tasks and
jobs are also published on the topic `tasks`, as the classes of `postroad.journal.events`.

{events}
## Metrics

`GET /metrics` of `postroad up` shows them all as text for Prometheus, with a token of the scope `read`. Figures of
queues and of the outbox are read from the stores, so they cover all processes, and counters of queues survive restarts.
Figures that handlers and parts measure begin at 0 with each `postroad up`. From the 201st queue on, all queues share
the label `queue="_other"`. Other processes that run a bus, a consumer or a worker keep their own metrics in the default
registry of `prometheus_client`; `postroad outbox run --metrics-port 9100` serves those of a dispatcher.

{metrics}
## Traces

A program that sets up the SDK of OpenTelemetry gets these spans; without it they cost nothing. Each has the attributes
`messaging.system` (`postroad`) and `messaging.destination.name`, and `messaging.message.id` where it is about one event
or message.

| span | around |
| --- | --- |
| `publish <topic>` | Sending to a topic or a queue. That of an outbox is linked to the span that recorded each event. |
| `receive <queue>` | Taking a batch from a queue, with a link to the span that published each message. |
| `handle <handler>` | One handler with one event, as a child of the span that published the event. |
| `dead_letter <queue>` | A message that is moved to the dead letters of the queue, in the trace of its event. |
| `redrive <queue>` | Sending dead letters of the queue back. |

## Log lines

Log lines are JSON, or text on a terminal (`log_format`). The key `event` of each has one of these names, so that you
can search for it and base alarms on it. Payloads, tokens and passwords are never logged. Lines begin with `ts`,
`level`, `event` and `service`. Those about a publish, receive, retry, dead letter or redrive have what is known of
`request_id`, `trace_id`, `event_id`, `queue`, `attempt` and `duration_ms`.

{lines}"""


def _telemetry() -> str:
    from postroad.journal import EVENT_CLASSES
    from postroad.telemetry.log_names import LOG_EVENTS

    events = [
        (f"`{name}`", _summary(cls), " ".join(f"`{field}`" for field in cls.__struct_encode_fields__))
        for name, cls in EVENT_CLASSES.items()
    ]
    metrics = [
        (f"`{name}`", says, " ".join(f"`{label}`" for label in labels) or "none")
        for name, (says, labels) in sorted(_metrics().items())
    ]
    parts: dict[str, list[str]] = {}
    for name in LOG_EVENTS:
        parts.setdefault(name.partition("_")[0], []).append(f"`{name}`")
    return _TELEMETRY.format(
        made=_MADE,
        events=_table(("event", "meaning", "properties"), events),
        metrics=_table(("metric", "meaning", "labels"), metrics),
        lines=_table(("part", "names"), [(part, " ".join(names)) for part, names in parts.items()]),
    )


_KINDS = ("Counter", "Gauge", "Histogram")
_FAMILIES = {"CounterMetricFamily": "_total", "GaugeMetricFamily": "", "HistogramMetricFamily": ""}
"""What `GET /metrics` makes of the stores, with what Prometheus appends to the name."""


def _metrics() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the help text and the labels of every metric: those of one table, and those that a module makes itself."""
    from postroad.telemetry.tracing import _METRICS

    found = dict(_METRICS)
    for module in (Path(__file__).parents[1] / "src" / "postroad").rglob("*.py"):
        for call in ast.walk(ast.parse(module.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                continue
            kind = call.func.id
            if kind in _KINDS and len(call.args) == 3:
                name, says, labels = map(ast.literal_eval, call.args)
                found[name] = (says, tuple(labels))
            elif kind in _FAMILIES and isinstance(call.args[0], ast.Constant):
                name, says = map(ast.literal_eval, call.args)
                labels = ast.literal_eval(next(each.value for each in call.keywords if each.arg == "labels"))
                # Where a process and the server show the same, the labels of the process stay.
                found.setdefault(name + _FAMILIES[kind], (says, tuple(labels)))
            elif kind == "_gauge":
                name, says, label = map(ast.literal_eval, call.args[:3])
                found.setdefault(name, (says, (label,)))
    return found


PACKAGES = (
    *(
        "bus",
        "events",
        "receiving",
        "sessions",
        "outbox",
        "inbox",
        "tasks",
        "jobs",
        "journal",
        "agents",
        "notifications",
    ),
    *("queues", "topics", "streams", "items", "blobs", "topology", "operations", "settings", "telemetry", "testing"),
    "wiring",
)
"""The packages whose names are public, in the order of the navigation."""
_API = """# Python API

Import these names from `postroad`. The packages have more; each has a page of its own. {made}

"""


def _api() -> dict[str, str]:
    """Return a page for each public package, which the build of the site fills from the docstrings, and their list."""
    homes = {}
    for package in PACKAGES:
        for name in import_module(f"postroad.{package}").__all__:
            homes.setdefault(name, package)
    rows = [(f"[`{name}`](api/{homes[name]}.md)", _first_line(name)) for name in postroad.__all__ if name in homes]
    packages = [
        (f"[`postroad.{each}`](api/{each}.md)", _summary(import_module(f"postroad.{each}"))) for each in PACKAGES
    ]
    index = (
        _API.format(made=_MADE) + _table(("name", "what it is"), rows) + "\n" + _table(("package", "holds"), packages)
    )
    return {"api": index, **{f"api/{each}": f"# postroad.{each}\n\n::: postroad.{each}\n" for each in PACKAGES}}


def _first_line(name: str) -> str:
    return _summary(getattr(postroad, name))


def _summary(thing: object) -> str:
    return inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    (FOLDER / "api").mkdir(parents=True, exist_ok=True)
    for page, text in pages().items():
        page.write_text(text)
