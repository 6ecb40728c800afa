"""The packages that verbs use, each loaded when a verb first uses a name of it: help and completion load none.

`bus_groups` is the module `postroad.bus.groups`, and `rich_text` is `rich.text`.
"""

# ruff: noqa: F401  # others import these names from here
# mypy: implicit-reexport
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich import (
        cells as rich_cells,
        console as rich_console,
        live as rich_live,
        padding as rich_padding,
        table as rich_table,
        text as rich_text,
    )

    import postroad.testing.powerloss.trial as testing_powerloss_trial
    import postroad.testing.verify.plan as testing_verify_plan
    import postroad.testing.verify.run as testing_verify_run
    import postroad.testing.verify.scenario as testing_verify_scenario
    import postroad.testing.verify.workload as testing_verify_workload
    import postroad.up.demo.once as up_demo_once
    import postroad.up.demo.story as up_demo_story
    from postroad import (
        agents,
        bus,
        engine,
        events,
        http,
        inbox,
        jobs,
        journal,
        notifications,
        operations,
        outbox,
        queues,
        tasks,
        topics,
        topology,
        views,
        wiring,
    )
    from postroad.agents import model as agents_model, plan as agents_plan
    from postroad.bus import aws as bus_aws, groups as bus_groups, tail as bus_tail
    from postroad.cli import probes as cli_probes
    from postroad.connections import aws as connections_aws, cloudwatch as connections_cloudwatch
    from postroad.http import tokens as http_tokens
    from postroad.jobs import dispatcher as jobs_dispatcher, status as jobs_status
    from postroad.journal import maintenance as journal_maintenance
    from postroad.notifications import health as notifications_health
    from postroad.operations import cost as operations_cost
    from postroad.tasks import health as tasks_health, messages as tasks_messages, threads as tasks_threads
    from postroad.testing import checker as testing_checker, mutants as testing_mutants
    from postroad.up import (
        command as up_command,
        dispatcher as up_dispatcher,
        notifications as up_notifications,
        runners as up_runners,
    )

else:

    class _Package:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._name), name)

    def __getattr__(name: str) -> _Package:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Package((name if name.startswith("rich_") else f"postroad_{name}").replace("_", "."))
