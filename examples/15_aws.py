"""The shop of 02_two_services.py on AWS: no line of it changes, only $POSTROAD_URL.

Run it: POSTROAD_URL=aws://eu-central-1 python examples/15_aws.py
It makes a topic of SNS and four queues of SQS with the credentials that boto3 finds, and removes the queues at the end.
"""

import os
import subprocess
import sys
from pathlib import Path

import postroad

SHOP = Path(__file__).with_name("02_two_services.py")


def main(url: str) -> None:
    subprocess.run([sys.executable, SHOP], env={**os.environ, "POSTROAD_URL": url}, check=True)
    with postroad.connect(url) as backend:
        for name in backend.queues():
            if name.startswith(("orders--shop", "orders--billing")):
                print(f"{name} is deleted, with {backend.queue(name).stats().visible} messages")
                backend.delete_queue(name)


if __name__ == "__main__":
    main(os.environ.get("POSTROAD_URL", "aws://eu-central-1"))
