"""What is wrong with queues, declared or live, as their settings alone tell it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from postroad.errors import InvalidInput
from postroad.queues import QueueSpec
from postroad.queues.spec import MAX_RETENTION
from postroad.topology.findings import Finding

Specs = Mapping[str, QueueSpec]
_MOST_SOURCES = 10
_LEAST_RECEIVES = 2
_MARGIN = 2


def lint_queues(
    specs: Specs, *, handler_p99: Mapping[str, float] | None = None, ends: Collection[str] = ()
) -> Iterator[Finding]:
    """Findings about each queue, and about queues and their dead letters; `ends` take those of something else."""
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
        if name in specs:
            yield from _openness(specs[name], sources[name])
    yield from _cycles(specs)


def _alone(spec: QueueSpec, handler_p99: Mapping[str, float], *, is_dead_letter: bool) -> Iterator[Finding]:
    p99 = _seconds(handler_p99, spec.name)
    if p99 is not None and spec.visibility < _MARGIN * p99:
        yield _warn(
            "visibility-below-p99", spec, f"visibility {spec.visibility:g} s is below twice the p99 of {p99:g} s",
            f"Raise it to {_MARGIN * p99:g} s or more, or extend leases while handling.",
        )  # fmt: skip
    if spec.receive_wait == 0:
        yield _warn("short-poll", spec, "an empty receive returns at once and is paid for", "Set receive_wait to 20.")
    if spec.dead_letter is not None and spec.max_receives < _LEAST_RECEIVES:
        yield _warn("max-receives-low", spec, "one failed receive makes a dead letter", "Set max_receives to 3.")
    if spec.dead_letter is None and not is_dead_letter:
        yield _warn("no-dlq", spec, "what always fails is received until it expires", "Give it a dead-letter queue.")


def _seconds(handler_p99: Mapping[str, object], queue: str) -> float | None:
    seconds = handler_p99.get(queue)
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidInput(f"handler_p99: {seconds!r} of {queue!r} is not a number of seconds", field="handler_p99")
    return seconds


def _with_dead_letters(spec: QueueSpec, dead_letters: QueueSpec) -> Iterator[Finding]:
    if spec.name.endswith(".fifo") is not dead_letters.name.endswith(".fifo"):
        message = f"{spec.name}: dead_letter {dead_letters.name!r} is of another type"
        yield Finding("fifo-mismatch", "error", spec.name, message, "Make both FIFO or both standard.")
    if spec.fifo or dead_letters.retention > spec.retention:
        return
    equal = dead_letters.retention == spec.retention
    if equal and dead_letters.retention == MAX_RETENTION:
        # Both keep messages for as long as a queue can.
        return
    how = "no longer than" if equal else "for less time than"
    message = f"{dead_letters.name}: keeps messages {how} {spec.name}; a dead letter's age counts from its first send"
    severity = "warning" if equal else "error"
    yield Finding("dlq-retention", severity, dead_letters.name, message, "Set its retention to 1209600 (14 days).")  # type: ignore[arg-type]  # one of the two words


def _needs_no_dead_letters(name: str, specs: Specs) -> bool:
    """Whether it holds wake-ups of tasks, which lose nothing, or what EventBridge puts aside."""
    stem = name.removesuffix("-dispatch")
    return name.endswith(("-eventbridge-archive", "-eventbridge-target-dlq")) or (
        stem != name and f"{stem}-dlq" in specs
    )


def _openness(spec: QueueSpec, sources: Sequence[str]) -> Iterator[Finding]:
    # Every process has a queue of its own on a topic, whose name nobody knows before.
    named = [name for name in sources if "--p-" not in name]
    if spec.redrive_allow == "all" and named and len(sources) <= _MOST_SOURCES:
        yield _warn(
            "redrive-allow-open", spec, "any queue of the account may put its dead letters here",
            "Name the sources in redrive_allow, ten at most.",
        )  # fmt: skip


def _cycles(specs: Specs) -> Iterator[Finding]:
    """One finding for each ring of dead-letter queues."""
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
    """The finding about a queue that stores its messages in the clear."""
    message = f"{name}: messages are stored unencrypted"
    return Finding("unencrypted", "warning", name, message, 'Set encryption="sqs", which costs nothing.')


def _warn(code: str, spec: QueueSpec, message: str, remedy: str) -> Finding:
    return Finding(code, "warning", spec.name, f"{spec.name}: {message}", remedy)
