"""An ordinary Celery task, for a worker started with ``--include tests.acceptance.ordinary``.

It says in the broker when it began and when it ended, so that no result backend is needed.
"""

from __future__ import annotations

import os
import time

import redis
from celery import shared_task

WAIT_MAX_S = 30.0


@shared_task(name="tests.ordinary")
def ordinary(key: str) -> None:
    """Count a beginning, wait for leave to go on, count an end."""
    client = redis.Redis.from_url(os.environ["FEEDQ_BROKER_URL"])
    client.incr(f"{key}/begun")
    give_up = time.monotonic() + WAIT_MAX_S
    while not client.exists(f"{key}/go") and time.monotonic() < give_up:
        time.sleep(0.02)
    client.incr(f"{key}/ended")
    client.close()
