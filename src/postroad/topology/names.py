"""Names that AWS accepts, and what becomes of the dotted names of events."""

from __future__ import annotations

import hashlib
import re

from postroad.topology.findings import Finding, refuse

ACCOUNT = "${AWS::AccountId}"
_FIFO = ".fifo"
_MARK = 8
_DIGITS = "000000000000"
_LONGEST = {
    "queue": 80, "topic": 256, "stream": 128, "table": 255, "bucket": 63, "bus": 256, "rule": 64, "function": 64,
    "alarm": 255, "component": 64, "role": 64, "topology": 128,
}  # fmt: skip
_SHORTEST = {"table": 3, "bucket": 3}
_FORMS = {
    "queue": r"[A-Za-z0-9_-]+(\.fifo)?",
    "topic": r"[A-Za-z0-9_-]+(\.fifo)?",
    "stream": r"[A-Za-z0-9_.-]+",
    "table": r"[A-Za-z0-9_.-]+",
    "bucket": r"[a-z0-9][a-z0-9.-]*[a-z0-9]",
    "bus": r"[A-Za-z0-9_.-]+",
    "rule": r"[A-Za-z0-9_.-]+",
    "function": r"[A-Za-z0-9_-]+",
    "alarm": r"[ -~]+",
    "component": r"[A-Za-z0-9_+=,.@-]+",
    "role": r"[A-Za-z0-9_+=,.@-]+",
    "topology": r"[A-Za-z0-9_.-]+",
}
_REMEDIES = {
    "queue": "Use 1 to 80 letters, digits, '-' or '_', with '.fifo' at the end exactly when it is FIFO.",
    "bucket": "Use 3 to 63 lower-case letters, digits, '-' or '.'.",
}


def aws_name(dotted: str, *, fifo: bool = False) -> str:
    """The name of a queue or topic for a dotted one: 'gateway.usdc' becomes 'gateway-usdc', with '.fifo' if FIFO."""
    name: object = dotted
    if isinstance(name, str):
        name = name.removesuffix(_FIFO).replace(".", "-") + (_FIFO if fifo else "")
    if (finding := name_finding("queue", name)) is not None:
        raise refuse([finding])
    return str(name)


def role_name(*parts: str) -> str:
    """The name of a role out of its parts; one that is too long for AWS ends in a hash instead of its tail."""
    name = "-".join(parts)
    if len(name) <= _LONGEST["role"]:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:_MARK]
    return f"{name[: _LONGEST['role'] - _MARK - 1]}-{mark}"


def name_finding(kind: str, name: object) -> Finding | None:
    """What is wrong with a name; None when AWS accepts it."""
    if kind not in _FORMS or _fits(kind, name):
        return None
    remedy = _REMEDIES.get(
        kind, f"Use {_SHORTEST.get(kind, 1)} to {_LONGEST[kind]} letters, digits, '-' or '_'."
    )  # fmt: skip
    shown = repr(name)[:120]
    return Finding("name-invalid", "error", str(name), f"{shown} is not the name of a {kind}", remedy)


def _fits(kind: str, name: object) -> bool:
    if not isinstance(name, str):
        return False
    plain = name.replace(ACCOUNT, _DIGITS) if kind == "bucket" else name
    within = _SHORTEST.get(kind, 1) <= len(plain) <= _LONGEST[kind]
    return within and re.fullmatch(_FORMS[kind], plain) is not None
