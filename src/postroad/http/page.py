"""The page at `/schema`: every route on one page, made here, with nothing from anywhere else."""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec

STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
article { border: 1px solid var(--line); border-radius: 8px; padding: 0 1rem; margin: 1rem 0; }
h2 { font: 600 1rem/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid var(--line); border-radius: 6px; }
dt { font-weight: 600; } .scope { opacity: .75; font-weight: 400; }
"""
_METHODS = ("get", "put", "post", "delete")


def render(document: dict[str, Any]) -> str:
    """The description as HTML."""
    routes = "\n".join(
        _route(method.upper(), path, item[method])
        for path, item in sorted(document["paths"].items())
        for method in _METHODS
        if method in item
    )
    title = f"{escape(document['info']['title'])} {escape(document['info']['version'])}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}: API</title><link rel="stylesheet" href="/schema/style.css"></head><body>'
        f'<main id="main" data-page="schema"><h1>{title}: API</h1>'
        "<p>Send <code>Authorization: Bearer …</code> with every request. For programs: "
        f'<a href="/schema/openapi.json">openapi.json</a>.</p>{routes}</main></body></html>'
    )


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"<p>{escape(operation.get('description', ''))}</p>"]
    if "requestBody" in operation:
        example = operation["requestBody"]["content"]["application/json"]["example"]
        parts.append(f"<pre>{escape(msgspec.json.format(msgspec.json.encode(example)).decode())}</pre>")
    parts.append("<dl>" + "".join(_parameter(one) for one in operation.get("parameters", [])) + "</dl>")
    answers = ", ".join(
        f"{status} {escape(one['description'])}" for status, one in sorted(operation["responses"].items())
    )
    parts.append(f"<details><summary>Answers</summary><p>{answers}</p></details>")
    scope = f'<span class="scope">{escape(operation["x-scope"])}</span>'
    return f"<article><h2>{method} {escape(path)} {scope}</h2>{''.join(parts)}</article>"


def _parameter(parameter: dict[str, Any]) -> str:
    return f"<dt>{escape(parameter['name'])}</dt><dd>{escape(parameter.get('description', ''))}</dd>"
