"""The same bus on AWS: a topic of SNS, a queue of SQS, and the credentials that boto3 finds.

Run it: POSTROAD_URL=aws://eu-central-1 python examples/15_aws.py
It makes the topic and two queues of one group, and removes the queues at the end.
"""

from __future__ import annotations

import os

import postroad


@postroad.event(name="examples.order-placed")
class OrderPlaced:
    order_id: str


def main(url: str) -> None:
    with postroad.connect(url) as backend:
        # A changed filter takes minutes to apply on SNS, so the group names the types that it receives.
        billing = backend.bus("examples-orders", "billing", event_types=[OrderPlaced])
        billing.subscribe(OrderPlaced, lambda event: print(f"billing sends an invoice for {event.order_id}"))

        billing.publish(OrderPlaced("A-1")).raise_if_errors()
        handled = billing.receive_once()

        print(f"{len(handled)} handled, from the queues {backend.queues()}")
        billing.close()
        for name in ("examples-orders--billing", "examples-orders--billing--dead"):
            backend.delete_queue(name)


if __name__ == "__main__":
    main(os.environ.get("POSTROAD_URL", "aws://eu-central-1"))
