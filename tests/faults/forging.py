"""Histories in short hand: each line of a case is a time, a process, an operation and what differs from the usual."""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORGED = Path(__file__).parent / "forged"
RUN: dict[str, Any] = {
    "format": 1,
    "seed": 7,
    "faults": True,
    "ordered": True,
    "policy": "block",
    "max_receives": 3,
    "visibility": 30,
    "subscriptions": {"orders": ["mail"]},
    "drained": True,
    "asked_kills": 0,
}
_RECEIPTS = ("receive", "handled", "ack", "extend", "release")


def cases() -> dict[str, dict[str, Any]]:
    """Return all forged histories by the names of their files."""
    return {path.stem: tomllib.loads(path.read_text()) for path in sorted(FORGED.glob("*.toml"))}


def forge(case: Mapping[str, Any], directory: Path) -> Path:
    """Write the history of a case as a run would have, and return its directory."""
    lines = defaultdict(list)
    for short in case["history"].strip().splitlines():
        process, line = _line(short)
        lines[process].append(line)
    write(directory, {**RUN, **case.get("run", {})}, lines)
    return directory


def write(directory: Path, run: Mapping[str, Any], lines: Mapping[str, list[dict[str, Any] | str]]) -> None:
    """Write `run.json` and one file for each process; text stands as it is, and is cut off if it is the last line."""
    (directory / "history").mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(run))
    for process, its in lines.items():
        texts = [each if isinstance(each, str) else json.dumps(each) for each in its]
        end = "" if isinstance(its[-1], str) else "\n"
        (directory / "history" / f"{process}.jsonl").write_text("\n".join(texts) + end)


def _line(short: str) -> tuple[str, dict[str, Any] | str]:
    """Read `TIME PROCESS OP[:OUTCOME] [name=value …]`, or `! PROCESS text` for a line that stands as it is."""
    time, process, rest = (short if short[0] == "!" else short.split("#")[0]).split(maxsplit=2)
    if time == "!":
        return process, rest
    words = rest.split()
    op, _, outcome = words[0].partition(":")
    given = {name: _value(value) for name, _, value in (word.partition("=") for word in words[1:])}
    return process, {"t": float(time), "p": process, "op": op, "outcome": outcome or "ok"} | _usual(op, time, given)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _usual(op: str, time: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an operation: those given, and the usual ones."""
    id, count = given.get("id"), given.pop("count", 1)
    usual: dict[str, Any] = {}
    if op in ("publish", "receive"):
        usual |= {"key": "k", "n": 0, "sha": f"sha of {id}"}
    if op == "publish":
        usual |= {"topic": "orders"}
    elif op in (*_RECEIPTS, "effect", "dead", "left", "gap", "peek"):
        usual |= {"sub": "mail"}
    if op in _RECEIPTS:
        usual |= {"receipt": f"{id}-{count}"}
    if op in ("receive", "peek"):
        usual |= {"receive_count": count}
    if op == "receive":
        usual |= {"token": count}
    if op == "handled":
        usual |= {"key": "k", "n": 0, "t0": float(time) - 0.1}
    return usual | given
