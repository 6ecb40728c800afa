"""Failpoints: named places at which a test may kill, stop or fail this process.

`POSTROAD_FAILPOINTS="name=action[:arg][@probability][#nth]"`, several separated by ';'. Unset, each costs one check.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from postroad.backoff import CHANCE
from postroad.errors import ConfigurationError, Unavailable

NAMES = frozenset(
    {
        *(
            "queue.send.before_commit",
            "queue.send.after_commit",
            "queue.receive.after_commit",
            "queue.ack.before_commit",
            "queue.ack.after_commit",
            "queue.dead_letter.before_commit",
            "queue.redrive.mid",
            "queue.purge.mid",
        ),
        "engine.checkpoint.mid",
        *("agents.aggregate.mid", "agents.fan_out.before_commit", "agents.fan_out.after_commit", "agents.release.mid"),
        *("consumer.after_commit", "consumer.after_effect"),
        "inbox.after_insert",
        *("notifications.offline.mid", "notifications.push.after_send"),
        *(
            "outbox.add.after_insert",
            "outbox.after_claim",
            "outbox.after_publish",
            "outbox.mid_batch",
            "outbox.before_settle",
        ),
        "http.before_reply",
        "events.after_publish",
        *("dispatcher.after_lease", "dispatcher.before_enqueue", "dispatcher.before_job_event"),
        *("scheduler.after_claim", "scheduler.after_send", "scheduler.after_submit"),
        *("worker.after_spawn", "worker.before_next", "worker.before_result"),
        "topology.apply.mid",
    }
)
_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_RULE = re.compile(
    rf"(?P<name>[a-z0-9_.]+)=(?P<action>[a-z0-9]+)(:(?P<arg>{_NUMBER}))?(@(?P<p>{_NUMBER}))?(#(?P<nth>[1-9][0-9]*))?"
)


@dataclass(slots=True)
class _Rule:
    act: Callable[[], None]
    probability: float
    nth: int | None
    hits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hit(self) -> None:
        with self.lock:
            self.hits += 1
            due = self.nth is None or self.hits == self.nth
        if due and (self.probability >= 1 or CHANCE.random() < self.probability):
            self.act()


_rules: dict[str, _Rule] = {}


def hit(name: str) -> None:
    """Run the action of the failpoint `name`, if it has one."""
    if _rules and (rule := _rules.get(name)) is not None:
        rule.hit()


def load(text: str | None) -> None:
    """Replace all failpoints with those that `text` describes."""
    rules = dict(_parse(part.strip()) for part in (text or "").split(";") if part.strip())
    _rules.clear()
    _rules.update(rules)


def _parse(part: str) -> tuple[str, _Rule]:
    match = _RULE.fullmatch(part)
    if match is None:
        raise _refused(part, "the form is name=action[:arg][@probability][#nth]")
    name, action, arg = match["name"], match["action"], match["arg"]
    if name not in NAMES:
        raise _refused(part, f"{name!r} is not one of {', '.join(sorted(NAMES))}")
    if action not in _ACTIONS:
        raise _refused(part, f"{action!r} is not one of {', '.join(sorted(_ACTIONS))}")
    probability = float(match["p"]) if match["p"] else 1.0
    if not 0 <= probability <= 1:
        raise _refused(part, "the probability is not between 0 and 1")
    return name, _Rule(_ACTIONS[action](float(arg or 0)), probability, int(match["nth"]) if match["nth"] else None)


def _refused(part: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"POSTROAD_FAILPOINTS: {part!r}: {why}", field="POSTROAD_FAILPOINTS")


def _raises(error: Callable[[], Exception]) -> Callable[[float], Callable[[], None]]:
    def act() -> None:
        raise error()

    return lambda _: act


def _stop(seconds: float) -> Callable[[], None]:
    def act() -> None:
        pid = os.getpid()
        # A stopped process cannot wake itself.
        subprocess.Popen(["/bin/sh", "-c", f"sleep {seconds}; kill -CONT {pid}"])
        os.kill(pid, signal.SIGSTOP)

    return act


_ACTIONS: dict[str, Callable[[float], Callable[[], None]]] = {
    "kill9": lambda _: lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda code: lambda: os._exit(int(code)),
    "raise": _raises(lambda: Unavailable("a failpoint raised this error")),
    "sleep": lambda seconds: lambda: time.sleep(seconds),
    "stop": _stop,
    "enospc": _raises(lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
}
