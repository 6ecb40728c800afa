"""Topology: one description of everything that a deployment needs, applied to the embedded engine or to AWS."""

from postroad.topology.alarms import AlarmState, alarm_rules, evaluate_alarms
from postroad.topology.cloudformation import render_cloudformation
from postroad.topology.declarations import (
    AlarmDecl,
    BucketDecl,
    BusDecl,
    Component,
    FunctionDecl,
    IndexDecl,
    QueueDecl,
    Resource,
    RuleDecl,
    StreamDecl,
    SubscriptionDecl,
    TableDecl,
    TopicDecl,
    TriggerDecl,
)
from postroad.topology.function_templates import agents_topology, task_topology
from postroad.topology.iam import consumer_policy, iam_policy, producer_policy
from postroad.topology.lint import lint, lint_queues as lint_queues, unencrypted as unencrypted
from postroad.topology.names import aws_name
from postroad.topology.plans import Action, ApplyResult, Drift, Plan, Site as Site, apply, drift, plan
from postroad.topology.queue_templates import bus_topology, chat_topology, transfers_topology
from postroad.topology.topology import Finding, Topology

__all__ = [
    "Action",
    "AlarmDecl",
    "AlarmState",
    "ApplyResult",
    "BucketDecl",
    "BusDecl",
    "Component",
    "Drift",
    "Finding",
    "FunctionDecl",
    "IndexDecl",
    "Plan",
    "QueueDecl",
    "Resource",
    "RuleDecl",
    "StreamDecl",
    "SubscriptionDecl",
    "TableDecl",
    "TopicDecl",
    "Topology",
    "TriggerDecl",
    "agents_topology",
    "alarm_rules",
    "apply",
    "aws_name",
    "bus_topology",
    "chat_topology",
    "consumer_policy",
    "drift",
    "evaluate_alarms",
    "iam_policy",
    "lint",
    "plan",
    "producer_policy",
    "render_cloudformation",
    "task_topology",
    "transfers_topology",
]
