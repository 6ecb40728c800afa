"""A topology of one's own: declared once, checked, applied to a file, and rendered for AWS.

Run it: python examples/14_own_topology.py
"""

from __future__ import annotations

import tempfile

import postroad
from postroad import QueueSpec
from postroad.topology import (
    AlarmDecl,
    Component,
    QueueDecl,
    SubscriptionDecl,
    TopicDecl,
    Topology,
    apply,
    drift,
    iam_policy,
    lint,
    plan,
    render_cloudformation,
)

ORDERS, INVOICES, DEAD = "shop-orders", "shop-invoices", "shop-invoices-dlq"
SHOP = Topology(
    "shop",
    (
        TopicDecl(ORDERS),
        QueueDecl(QueueSpec(DEAD, retention=1_209_600, redrive_allow=(INVOICES,))),
        QueueDecl(QueueSpec(INVOICES, visibility=60, dead_letter=DEAD, max_receives=5)),
        SubscriptionDecl(ORDERS, INVOICES, filter={"EventType": ("shop.order-placed",)}),
        AlarmDecl("shop-invoices-dead", "ApproximateNumberOfMessagesVisible", DEAD, threshold=1),
    ),
    components=(Component("web", publishes=(ORDERS,)), Component("billing", consumes=(INVOICES,))),
)


def main(url: str) -> None:
    print("findings:", [finding.code for finding in lint(SHOP)])
    with postroad.connect(url) as backend:
        agreed = plan(SHOP, backend)
        for action in agreed.actions:
            print(f"{action.verb:8} {action.kind:13} {action.name}")
        apply(SHOP, backend, expect=agreed.digest)
        print("drift:", drift(SHOP, backend))

    template = render_cloudformation(SHOP)
    print("on AWS:", sorted({each["Type"] for each in template["Resources"].values()}))
    policy = iam_policy(SHOP, "billing", region="eu-central-1", account="123456789012")
    print("billing may:", policy["Statement"][0]["Action"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(f"sqlite:///{directory}/postroad.db")
