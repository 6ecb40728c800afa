"""A topology on AWS: the state of one account and region, and the changes to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from postroad.connections import AwsConnection, ask, pages
from postroad.topology.alarms import dead_letter_queues
from postroad.topology.aws import queues, topics
from postroad.topology.aws.alarms import Alarms
from postroad.topology.aws.functions import Functions
from postroad.topology.aws.queues import Queues
from postroad.topology.aws.stores import Buckets, Streams, Tables, changed_keys, flat
from postroad.topology.aws.topics import Buses, Rules, Subscriptions, Topics
from postroad.topology.aws_properties import OWNER_TAG, Form, form_of, role_form
from postroad.topology.declarations import DEFAULT_BUS, AlarmDecl, FunctionDecl, Resource, RuleDecl
from postroad.topology.names import ACCOUNT, ARNS, Key, Place
from postroad.topology.plans import Look, Stray, keep_dead_letters
from postroad.topology.topology import Topology

# What calls goes before what is called, and a rule before its bus.
_ORDER = ("alarm", "rule", "function", "bus", "topic", "queue", "stream", "table", "bucket")


def owned(connection: AwsConnection, topology: str) -> list[Key]:
    """Return the resources with this topology's tag, in the order in which they can be removed."""
    wanted = [{"Key": OWNER_TAG, "Values": [topology]}]
    found = pages(f"what topology {topology!r} owns", connection.tagging.get_resources, TagFilters=wanted)
    arns = (each["ResourceARN"] for page in found for each in page["ResourceTagMappingList"])
    keys = [key for arn in arns if (key := key_of(arn)) is not None]
    return sorted(keys, key=lambda key: (_ORDER.index(key[0]), key[1]))


def key_of(arn: str) -> Key | None:
    """Return the kind and name behind an ARN; a rule's name begins with its bus and a slash."""
    _, _, service, _, _, rest = arn.split(":", 5)
    for kind in _ORDER:
        _, _, of_kind, _, _, form = ARNS[kind].split(":", 5)
        name = rest.removeprefix(form.removesuffix("{name}"))
        if service == of_kind and form.format(name=name) == rest and ("/" not in name or kind == "rule"):
            return kind, f"{DEFAULT_BUS}/{name}" if kind == "rule" and "/" not in name else name
    return None


_DEFAULTS = {"queue": queues.DEFAULTS, "topic": topics.DEFAULTS}
# What the form holds for the templates only.
_NOT_COMPARED = {"function": ("component", "role_name")}


class AwsSite:
    """One account in one region."""

    gathers_metrics = True

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection
        self._forms: dict[Key, Form] = {}

    def look(self, topology: Topology, resource: Resource, *, code: str | None) -> Look:
        if isinstance(resource, FunctionDecl) and code is None:
            return Look(resource, skip="no code given")
        self._kinds["alarm"].names = [each.name for each in topology.of("alarm")]
        form = self._form(topology, resource, code)
        have = self._kinds[resource.kind].read(form)
        form = self._settled(form, have)
        self._forms[resource.kind, resource.name] = form
        return self._compared(resource, _comparable(form), have)

    def strays(self, topology: Topology) -> Sequence[Stray]:
        found = [key for key in owned(self._connection, topology.name) if not _declares(topology, key)]
        reasons = {"table": "tables are never removed", "bucket": "buckets are never removed"}
        strays = [
            Stray(key, self._kinds["queue"].keep(key[1]) if key[0] == "queue" else reasons.get(key[0], ""))
            for key in found
        ]
        return keep_dead_letters(strays, self._kinds["queue"].sources)

    def holds_items(self, resource: Resource) -> bool:
        """Return whether a table holds an item; nothing else is ever replaced."""
        return bool(self._kinds["table"].holds_items(resource.name))

    def create(self, look: Look) -> None:
        self._kinds[look.resource.kind].create(self._forms[look.key])

    def update(self, look: Look, fields: Collection[str]) -> None:
        self._kinds[look.resource.kind].update(self._forms[look.key], fields)

    def delete(self, key: Key) -> None:
        self._kinds[key[0]].delete(key[1])

    def measure(self, topology: Topology, alarm: AlarmDecl) -> float | None:
        """Return the metric of an alarm: queues are counted, and CloudWatch knows all others."""
        if alarm.metric == "dead_letter_count":
            counted = [self._kinds["queue"].counts(name) for name in dead_letter_queues(topology)]
            return float(sum(counts[0] for counts in counted if counts is not None))
        if alarm.namespace == "AWS/SQS" and alarm.metric == "ApproximateNumberOfMessagesVisible":
            counts = self._kinds["queue"].counts(alarm.resource)
            return None if counts is None else float(counts[0])
        found: float | None = self._kinds["alarm"].latest(form_of(topology, alarm, self._place))
        return found

    @cached_property
    def _place(self) -> Place:
        arn = ask("the account", self._connection.sts.get_caller_identity)["Arn"]
        _, partition, _, _, account, _ = arn.split(":", 5)
        return Place(partition, self._connection.region, account)

    @cached_property
    def _kinds(self) -> dict[str, Any]:
        """What reads, makes, changes and removes the resources of each kind."""
        aws, place = self._connection, self._place
        queues = Queues(aws, place)
        return {
            "queue": queues,
            "topic": Topics(aws, place),
            "subscription": Subscriptions(aws),
            "stream": Streams(aws),
            "table": Tables(aws, place),
            "bucket": Buckets(aws),
            "bus": Buses(aws, place),
            "rule": Rules(aws, place),
            "function": Functions(aws, place, queues),
            "alarm": Alarms(aws, place),
        }

    def _form(self, topology: Topology, resource: Resource, code: str | None) -> Form:
        form = form_of(topology, resource, self._place)
        if isinstance(resource, FunctionDecl):
            [component] = [each for each in topology.components if each.name == resource.component]
            rights = dict(role_form(topology, component, self._place).settings)
            del rights["tags"], rights["role_name"]
            return replace(form, settings={**form.settings, "code": code, "rights": rights})
        if isinstance(resource, RuleDecl) and code is None and topology.find("function", resource.target):
            return replace(form, settings={**form.settings, "target": None, "skipped": resource.target_id})
        return form

    def _settled(self, form: Form, have: Mapping[str, Any] | None) -> Form:
        """Return the form with what only the account knows."""
        settings = dict(form.settings)
        if form.kind == "function":
            settings["environment"] = self._kinds["function"].wanted_environment(form, have)
        owner = ((have or {}).get("tags") or {}).get(OWNER_TAG)
        if owner is not None:
            settings["tags"] = {**settings["tags"], OWNER_TAG: owner}
        return replace(form, settings=settings)

    def _compared(self, resource: Resource, want: dict[str, Any], have: dict[str, Any] | None) -> Look:
        if have is None:
            return Look(resource, want)
        if "tags" in want:
            have["tags"] = {key: have["tags"][key] for key in want["tags"] if key in have["tags"]}
        defaults = _DEFAULTS.get(resource.kind, {})
        untold = {name: default for name, default in defaults.items() if name in want and name not in have}
        # AWS returns every setting that is not the default; an emulator may not.
        emulated = self._connection.endpoint_url is not None
        lost = tuple(name for name, default in untold.items() if emulated and want[name] != default)
        fixed = changed_keys(have, want) if resource.kind == "table" else ()
        return Look(resource, want, {**untold, **have}, unverifiable=lost, fixed=fixed)


def _comparable(form: Form) -> dict[str, Any]:
    settings = flat(form.settings) if form.kind == "table" else dict(form.settings)
    if settings.pop("skipped", None) is not None:
        del settings["target"]
    return {name: value for name, value in settings.items() if name not in _NOT_COMPARED.get(form.kind, ())}


def _declares(topology: Topology, key: Key) -> bool:
    kind, name = key
    if topology.find(kind, name.rpartition("/")[2] if kind == "rule" else name) is not None:
        return True
    buckets = [each.name.partition(ACCOUNT) for each in topology.of("bucket")] if kind == "bucket" else []
    return any(name.startswith(before) and name.endswith(after) for before, _, after in buckets)
