"""The jobs that are measured, for workers with ``FEEDQ_IMPORTS=bench.job_tasks``."""

from __future__ import annotations

import time

from celery import shared_task

STEP_S = 0.1


@shared_task(name="bench.nothing")
def nothing() -> None:
    """What a run costs when its job costs nothing."""


@shared_task(name="bench.busy")
def busy(seconds: float) -> None:
    """Keeps a slot for so long, and the processor for nothing."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        time.sleep(STEP_S)
