"""Lint: errors and doubtful settings of a topology or of queues, found before anything is made."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from postroad.arguments import Seconds, check as check_argument, check_settings
from postroad.errors import TopologyError
from postroad.queues import MAX_RETENTION, QueueSpec
from postroad.settings import nearest
from postroad.topology import declarations
from postroad.topology.names import NEEDS, component_mentions, mentions, name_finding, resolve, sources_of
from postroad.topology.topology import Finding, Severity, Topology, refuse

Specs = Mapping[str, QueueSpec]
_MOST_SOURCES = 10
_LEAST_RECEIVES = 2
_MARGIN = 2
_MOST_RESOURCES = 500
_PERHAPS_TOO_MANY = 150
_MOST_POLICY_BYTES = 10_240
_FIFO_REMEDY = "Make both FIFO or both standard."


def check_values(topology: Topology) -> None:
    """Raise `TopologyError` with the first value that no store accepts."""
    for resource in topology.resources:
        inner = (*getattr(resource, "triggers", ()), *getattr(resource, "indexes", ()))
        try:
            for each in (resource, *inner):
                check_settings(each, TopologyError)
                _check_combination(each)
        except TopologyError as error:
            message = f"{resource.kind} {resource.name!r}: {error.message}"
            raise TopologyError(message, field=error.field, remedy=error.remedy) from None
    for component in topology.components:
        for need in (*NEEDS, "creates"):
            if isinstance(getattr(component, need), str):
                message = f"component {component.name!r}: {need}: is one text, not a list of names"
                raise TopologyError(message, field=need)


def _check_combination(each: object) -> None:
    if isinstance(each, declarations.RuleDecl):
        if bool(each.pattern) is bool(each.schedule):
            raise TopologyError("pattern: a rule has either a pattern or a schedule", field="pattern")
        if each.schedule and each.bus != declarations.DEFAULT_BUS:
            message = f"schedule: schedules run on the bus {declarations.DEFAULT_BUS!r} only, not on {each.bus!r}"
            raise TopologyError(message, field="schedule")
    elif isinstance(each, declarations.TableDecl | declarations.IndexDecl) and each.hash_key == each.range_key:
        raise TopologyError(f"range_key: {each.range_key!r} is the hash key already", field="range_key")


def lint_queues(
    specs: Specs, *, handler_p99: Mapping[str, float] | None = None, ends: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield findings about each queue and its dead letters.

    Args:
        specs: The settings of the queues by name.
        handler_p99: Seconds by queue within which 99 of 100 calls of its handler return.
        ends: Queues that take dead letters of something other than a queue.
    """
    sources: defaultdict[str, list[str]] = defaultdict(list)
    for spec in specs.values():
        if spec.dead_letter is not None:
            sources[spec.dead_letter].append(spec.name)
    for spec in specs.values():
        is_end = spec.name in sources or spec.name in ends or _needs_no_dead_letters(spec.name, specs)
        yield from _alone(spec, handler_p99 or {}, is_dead_letter=is_end)
        dead_letters = specs.get(spec.dead_letter or "")
        if spec.dead_letter is not None and dead_letters is not None:
            yield from _with_dead_letters(spec, dead_letters)
    for name in sorted(sources):
        # Each process has its own queue on a topic, with a name that is not known in advance.
        named = [source for source in sources[name] if "--p-" not in source]
        if name in specs and specs[name].redrive_allow == "all" and named and len(sources[name]) <= _MOST_SOURCES:
            text = "any queue of the account may put its dead letters here"
            yield _warn("redrive-allow-open", specs[name], text, "Name the sources in redrive_allow, ten at most.")
    yield from _cycles(specs)


def _alone(spec: QueueSpec, handler_p99: Mapping[str, float], *, is_dead_letter: bool) -> Iterator[Finding]:
    p99 = handler_p99.get(spec.name)
    check_argument(p99, Seconds | None, "handler_p99")
    if p99 is not None and spec.visibility < _MARGIN * p99:
        yield _warn(
            "visibility-below-p99",
            spec,
            f"visibility {spec.visibility:g} s is below twice the p99 of {p99:g} s",
            f"Raise it to {_MARGIN * p99:g} s or more, or extend leases while handling.",
        )
    if spec.receive_wait == 0:
        yield _warn("short-poll", spec, "an empty receive returns at once and is paid for", "Set receive_wait to 20.")
    if spec.dead_letter is not None and spec.max_receives < _LEAST_RECEIVES:
        yield _warn("max-receives-low", spec, "one failed receive makes a dead letter", "Set max_receives to 3.")
    if spec.dead_letter is None and not is_dead_letter:
        yield _warn("no-dlq", spec, "what always fails is received until it expires", "Give it a dead-letter queue.")


def _with_dead_letters(spec: QueueSpec, dead_letters: QueueSpec) -> Iterator[Finding]:
    if spec.name.endswith(".fifo") is not dead_letters.name.endswith(".fifo"):
        yield _error("fifo-mismatch", spec, f"dead_letter {dead_letters.name!r} is of another type", _FIFO_REMEDY)
    if spec.fifo or dead_letters.retention > spec.retention:
        return
    equal = dead_letters.retention == spec.retention
    if equal and dead_letters.retention == MAX_RETENTION:
        # Both keep messages for as long as a queue can.
        return
    how = "no longer than" if equal else "for less time than"
    message = f"{dead_letters.name}: keeps messages {how} {spec.name}; a dead letter's age counts from its first send"
    severity: Severity = "warning" if equal else "error"
    yield Finding("dlq-retention", severity, dead_letters.name, message, "Set its retention to 1209600 (14 days).")


def _needs_no_dead_letters(name: str, specs: Specs) -> bool:
    """Return whether it holds wake-ups of tasks, which may be lost, or what EventBridge could not deliver."""
    stem = name.removesuffix("-dispatch")
    return name.endswith(("-eventbridge-archive", "-eventbridge-target-dlq")) or (
        stem != name and f"{stem}-dlq" in specs
    )


def _cycles(specs: Specs) -> Iterator[Finding]:
    done: set[str] = set()
    for start in specs:
        path: list[str] = []
        name: str | None = start
        while name is not None and name in specs and name not in done and name not in path:
            path.append(name)
            name = specs[name].dead_letter
        if name in path:
            ring = [*path[path.index(name) :], name]
            message = f"{' -> '.join(ring)}: dead letters go round in a ring"
            yield Finding("dlq-cycle", "error", name, message, "Let the last queue have no dead-letter queue.")
        done.update(path)


def unencrypted(name: str) -> Finding:
    """Return the finding about a queue that stores its messages unencrypted."""
    message = f"{name}: messages are stored unencrypted"
    return Finding("unencrypted", "warning", name, message, 'Set encryption="sqs", which costs nothing.')


def _warn(code: str, target: Any, text: str, remedy: str) -> Finding:
    return Finding(code, "warning", target.name, f"{target.name}: {text}", remedy)


def _error(code: str, target: Any, text: str, remedy: str) -> Finding:
    return Finding(code, "error", target.name, f"{target.name}: {text}", remedy)


def lint(topology: Topology, *, handler_p99: Mapping[str, float] | None = None) -> tuple[Finding, ...]:
    """Return every error and every doubtful setting of a topology.

    Args:
        topology: The topology to check.
        handler_p99: Seconds by queue within which 99 of 100 calls of its handler return, as far as they are known.

    Raises:
        InvalidInput: A value of `handler_p99` is not a number of seconds.

    Example:
        errors = [finding for finding in lint(topology) if finding.severity == "error"]
    """
    specs = {each.name: each.spec for each in topology.resources if isinstance(each, declarations.QueueDecl)}
    findings = (
        *_names(topology),
        *_references(topology),
        *lint_queues(specs, handler_p99=handler_p99 or {}, ends=_ends(topology)),
        *_encryption(topology),
        *_types(topology),
        *_alarms(topology),
    )
    is_sound = all(finding.severity != "error" for finding in findings)
    return (*findings, *(_sizes(topology) if is_sound else ()))


def check(topology: Topology) -> None:
    """Raise `TopologyError` with all findings if one of them is an error, or with a value that no store accepts."""
    findings = lint(topology)
    if any(finding.severity == "error" for finding in findings):
        raise refuse(findings)
    check_values(topology)


def _sizes(topology: Topology) -> Iterator[Finding]:
    from postroad.topology.cloudformation import count_resources
    from postroad.topology.iam import policy_of

    count = len(topology.resources)
    if _PERHAPS_TOO_MANY < count <= _MOST_RESOURCES:
        count = count_resources(topology)
    if count > _MOST_RESOURCES:
        text = f"{count:,} resources, and a template of CloudFormation holds {_MOST_RESOURCES}"
        yield _warn("too-many-resources", topology, text, "Divide it into several topologies.")
    for component in topology.components:
        size = len(json.dumps(policy_of(topology, component), separators=(",", ":")))
        if size > _MOST_POLICY_BYTES:
            text = f"its policy has {size:,} bytes, and a role holds {_MOST_POLICY_BYTES:,}"
            yield _warn("policy-too-large", component, text, "Divide it into several components.")


def _names(topology: Topology) -> Iterator[Finding]:
    named = [("topology", topology.name), *((each.kind, each.name) for each in topology.resources)]
    named += [("component", component.name) for component in topology.components]
    if any(component.role is not None for component in topology.components):
        named += [("role", component.role_name) for component in topology.components]
    same: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for kind, name in named:
        if (finding := name_finding(kind, name)) is not None:
            yield finding
        stem = str(name).removesuffix(".fifo")
        same[kind, stem.replace(".", "-") + str(name)[len(stem) :]].append(str(name))
    for (kind, shared), names in same.items():
        if len(names) > 1:
            message = f"{' and '.join(map(repr, names))} are both the {kind} {shared!r}"
            yield Finding("name-clash", "error", shared, message, "Rename one of them.")


def _references(topology: Topology) -> Iterator[Finding]:
    patterns = {pattern for component in topology.components for pattern in component.creates}
    named = [(each.name, mention) for each in topology.resources for mention in mentions(each)]
    named += [(each.name, mention) for each in topology.components for mention in component_mentions(each)]
    for owner, mention in named:
        if mention.name not in patterns and resolve(topology, mention) is None:
            known = [resource.name for kind in mention.kinds for resource in topology.of(kind)]
            meant = nearest(mention.name, known)
            hint = f"Did you mean {meant!r}?" if meant else f"Declare it, or name another {' or '.join(mention.kinds)}."
            message = f"{owner}: {mention.field} {mention.name!r} is not declared"
            yield Finding("unknown-reference", "error", owner, message, hint)
    components = [component.name for component in topology.components]
    for function in topology.of("function"):
        wanted = getattr(function, "component", "")
        if wanted not in components:
            yield _error(
                "unknown-reference", function, f"component {wanted!r} is not declared", "Declare the component."
            )


def _ends(topology: Topology) -> set[str]:
    """Return the queues that take failures of rules and functions, or that a component operates as dead letters."""
    failed = {getattr(each, field, None) for each in topology.resources for field in ("dead_letter", "on_failure")}
    operated = {name for component in topology.components for name in component.operates}
    return {name for name in failed | operated if name is not None}


def _encryption(topology: Topology) -> Iterator[Finding]:
    for queue in topology.resources:
        if not isinstance(queue, declarations.QueueDecl) or queue.encryption == "sqs":
            continue
        if queue.encryption == "none":
            yield unencrypted(queue.name)
        elif not queue.encryption.startswith("arn:"):
            text = f"encryption {queue.encryption!r} is neither 'sqs', 'none' nor the ARN of a key"
            yield _error("unknown-reference", queue, text, "Give the ARN of a KMS key.")


def _types(topology: Topology) -> Iterator[Finding]:
    for each in topology.resources:
        if isinstance(each, declarations.TopicDecl) and each.fifo is not each.name.endswith(".fifo"):
            text = f"the name and fifo={each.fifo} disagree"
            yield _error("fifo-mismatch", each, text, "End the name with '.fifo' exactly when FIFO.")
        elif isinstance(each, declarations.SubscriptionDecl):
            if each.topic.endswith(".fifo") is not each.queue.endswith(".fifo"):
                yield _error("fifo-mismatch", each, "the topic and the queue are of different types", _FIFO_REMEDY)
        elif isinstance(each, declarations.RuleDecl):
            if each.target.endswith(".fifo"):
                text = f"a bus keeps no order for the FIFO queue {each.target!r}"
                yield _error("fifo-mismatch", each, text, "Send to a standard queue.")
            if each.dead_letter is not None and each.dead_letter.endswith(".fifo"):
                text = f"a rule cannot have the FIFO queue {each.dead_letter!r} for its dead letters"
                yield _error("rule-dlq-fifo", each, text, "Name a standard queue.")


def _alarms(topology: Topology) -> Iterator[Finding]:
    ends = _ends(topology)
    for alarm in topology.resources:
        if not isinstance(alarm, declarations.AlarmDecl) or (alarm.comparison, alarm.threshold) != (">", 1):
            continue
        if alarm.resource in ends or sources_of(topology, alarm.resource) or "dlq" in alarm.resource:
            yield _warn("alarm-threshold", alarm, "'> 1' sleeps through the first dead letter", 'Use ">=" 1.')
