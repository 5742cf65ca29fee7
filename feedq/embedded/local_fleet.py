"""The processes of a fleet on one machine: plain ``celery -A feedq …`` commands, and when each is ready."""

from __future__ import annotations

import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from feedq.embedded.local_service import Service, inherited_env
from feedq.model import WorkerState
from feedq.store.base import Store
from feedq.store.insight import fleet_state

CELERY = (sys.executable, "-m", "celery", "-A", "feedq")
METRICS_PORT = "FEEDQ_METRICS_PORT"
FLOWER_USER = "feedq"
FLOWER_LOGINS = ("FLOWER_BASIC_AUTH", "FLOWER_AUTH")
"""Where somebody gave Flower a login already."""


def worker(number: int, *, capacity: int, settings: Mapping[str, str], logs: Path) -> Service:
    name = f"worker{number}"
    metrics_port = int(settings.get(METRICS_PORT) or 0)
    if metrics_port:
        # One port cannot serve them all: the first worker has the port that was asked for.
        settings = {**settings, METRICS_PORT: str(metrics_port + number - 1)}
    argv = (*CELERY, "worker", f"--hostname={name}@%h", f"--concurrency={capacity}", "--loglevel=INFO")
    return Service(name, "worker", lambda: argv, inherited_env(settings), logs / f"{name}.log")


def beat(number: int, *, settings: Mapping[str, str], logs: Path) -> Service:
    name = f"beat{number}"
    argv = (*CELERY, "beat", "--loglevel=INFO")
    return Service(name, "beat", lambda: argv, inherited_env(settings), logs / f"{name}.log")


def flower(*, port: Callable[[], int], password: str, settings: Mapping[str, str], logs: Path) -> Service:
    """``password`` is that of `FLOWER_USER`; empty where the environment gives Flower its login."""

    def argv() -> tuple[str, ...]:
        return (*CELERY, "flower", "--address=127.0.0.1", f"--port={port()}")

    # In the environment, because everybody can read a command line.
    login = {FLOWER_LOGINS[0]: f"{FLOWER_USER}:{password}"} if password else {}
    return Service("flower", "flower", argv, inherited_env(settings) | login, logs / "flower.log")


def active_pids(store: Store) -> set[int]:
    """Processes whose worker session is active."""
    return {v.worker.pid for v in store.workers.views() if v.worker.state is WorkerState.ACTIVE}


def has_leader(database_url: str) -> bool:
    """Whether some beat has been elected."""
    leader = fleet_state(database_url).leader
    return leader is not None and leader.leads


def answers_tcp(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def answers_http(url: str, *, timeout_s: float = 2.0) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310 - a URL of ours
            return bool(response.status < 500)
    except urllib.error.HTTPError as error:
        return error.code < 500
    except (OSError, ValueError):
        return False
