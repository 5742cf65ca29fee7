"""Celery alone, for comparison: the same empty task, and nothing of feedq in the process.

Messages are acknowledged late, one is fetched a slot, and results are ignored, as feedq has it. A backlog waits in
Valkey before the worker starts. How far it has come is read from there, which costs the worker nothing: what is
neither queued nor unacknowledged is done.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from celery import Celery

from feedq.local.valkey import Valkey
from tests.cluster import ROOT
from tests.node import Node

QUEUE: Final = "plain"
UNACKED: Final = "unacked"
"""The hash in which Celery's transport keeps what is fetched and not acknowledged."""
DATABASE: Final = 1
URL_VARIABLE: Final = "BENCH_BROKER_URL"
SLOTS: Final = 8
LIMIT_S: Final = 120.0
POLL_S: Final = 0.01
"""Of seconds that a run takes."""


def make_app(url: str) -> Celery:
    """The app for this broker. Connects to nothing."""
    app = Celery("plain", set_as_current=False)
    app.conf.update(
        broker_url=url,
        broker_connection_retry_on_startup=True,
        result_backend=None,
        task_ignore_result=True,
        task_acks_late=True,
        task_default_queue=QUEUE,
        worker_prefetch_multiplier=1,
    )
    app.task(_nothing, name="plain.nothing")
    return app


def _nothing() -> None:
    """The task."""


def runs_per_s(directory: Path, valkey: Valkey, *, pool: str, runs: int) -> float:
    """From the first task that is done to the last, by one worker with `SLOTS` of this pool."""
    url = valkey.url(DATABASE)
    _enqueue(url, runs)
    argv = [sys.executable, "-m", "celery", "-A", "bench.plain_celery", "worker", "-n", f"{pool}@bench"]
    argv += ["-P", pool, "-c", str(SLOTS), "-Q", QUEUE, "--without-mingle", "--without-gossip"]
    env = {"PATH": os.environ["PATH"], URL_VARIABLE: url}
    node = Node(f"celery-{pool}", argv, env=env, cwd=ROOT, log=directory / f"celery-{pool}.log")
    node.start()
    try:
        with valkey.client(DATABASE) as client:

            def done() -> int:
                # Both at once: a message on its way from one to the other must not be taken for done.
                queued, fetched = client.pipeline(transaction=True).llen(QUEUE).hlen(UNACKED).execute()
                return runs - int(queued) - int(fetched)

            return _rate(done, runs=runs)
    finally:
        node.end(grace_s=10)


def _enqueue(url: str, runs: int) -> None:
    app = make_app(url)
    nothing = app.tasks["plain.nothing"]
    with app.producer_or_acquire() as producer:
        for _ in range(runs):
            nothing.apply_async(producer=producer)
    app.close()


def _rate(done: Callable[[], int], *, runs: int) -> float:
    deadline = time.monotonic() + LIMIT_S
    began = time.monotonic()
    while (count := done()) < runs:
        now = time.monotonic()
        assert now < deadline, f"{count} of {runs} tasks done after {LIMIT_S:g} s"
        if count == 0:
            began = now
        time.sleep(POLL_S)
    return runs / (time.monotonic() - began)


if URL_VARIABLE in os.environ:  # in the worker
    app = make_app(os.environ[URL_VARIABLE])
