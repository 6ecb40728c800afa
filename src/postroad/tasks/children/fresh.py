"""A task in a new interpreter: the plan and the order come by standard input."""

from __future__ import annotations

import os
import sys

import msgspec

from postroad.tasks.children.calling import call, failed
from postroad.tasks.children.child import WORDS, finish, say
from postroad.tasks.children.finding import decode_plan, find_tasks
from postroad.tasks.children.wire import Order, read_frame


def main() -> None:
    """Run one order and end."""
    plan_data, order_data = read_frame(0), read_frame(0)
    assert plan_data is not None
    assert order_data is not None
    os.set_inheritable(WORDS, False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    plan, order = decode_plan(plan_data), msgspec.msgpack.decode(order_data, type=Order)
    try:
        function = find_tasks(plan).get(order.name).function
    except Exception as error:
        sys.exit(finish(failed(error)))
    assert function is not None
    sys.exit(finish(call(function, order, say, max_output_bytes=plan.max_output_bytes)))
