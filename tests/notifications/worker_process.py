"""A worker as a process of its own: `python -m tests.notifications.worker_process SETTINGS`. It ends by SIGTERM."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from postroad import connect
from postroad.notifications import APNSSender, FCMSender, NotificationStore, NotificationWorker
from postroad.signals import stopped_by_signals


def main(url: str, database: str, apns: dict[str, Any], fcm: dict[str, Any], **options: Any) -> None:
    """Work until SIGTERM, telling that it began."""
    with connect(url) as backend, NotificationStore(database) as store, stopped_by_signals() as stop:
        with APNSSender(**apns) as to_apple, FCMSender(**fcm, token_provider=lambda: "access-1") as to_google:
            worker = NotificationWorker(
                backend,
                store,
                push_queue="push-queue",
                offline_queue="offline-queue",
                apns=to_apple,
                fcm=to_google,
                **options,
            )
            os.write(1, b"ready\n")
            worker.run(stop)
    os.write(1, b"stopped\n")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
