"""Topologies that are ready to use: chat, transfers, tasks, agents and the buses of agents."""

from postroad.topology.templates.agents import agents_topology
from postroad.topology.templates.chat import chat_topology
from postroad.topology.templates.queues import bus_topology, transfers_topology
from postroad.topology.templates.tasks import task_topology

__all__ = ["agents_topology", "bus_topology", "chat_topology", "task_topology", "transfers_topology"]
