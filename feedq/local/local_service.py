"""One process of the fleet: start it, notice its end, start it again after a pause.

The pause is there to be seen: a killed worker's feeds go on elsewhere, and it comes back to take its share.
It grows while the process keeps dying young, so that a broken one does not take the machine with it. When no other
of its kind is left there is no elsewhere, and no pause.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from feedq.local.process import end, poll_until, release, rotate, spawn

RESTART_PAUSE_S = 5.0
RESTART_PAUSE_MAX_S = 60.0
LAST_PAUSE_S = 0.5
"""When all of a kind have died, one is started again after this: a machine is to do something else meanwhile."""
HEALTHY_S = 60.0
"""A process that lived this long is restarted after the shortest pause again."""


@dataclass(frozen=True, slots=True)
class ServiceExit:
    """A process that ended by itself."""

    name: str
    pid: int
    how: str
    restart_in_s: float


@dataclass(slots=True)
class Service:
    """A named process with a log of its own. Times are monotonic seconds, given by the caller."""

    name: str
    kind: str
    argv: Callable[[], Sequence[str]]
    """Asked anew at each start: a port may have been taken meanwhile."""
    env: Mapping[str, str]
    log: Path
    deaths: int = 0
    """Deaths in a row, each after less than `HEALTHY_S`."""
    started_at: float = 0.0
    ended_at: float | None = None
    """When it died, unless it could not be started again since."""
    restart_at: float | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    def start(self, *, now: float) -> None:
        self.log.parent.mkdir(exist_ok=True)
        if self.deaths == 0:
            # A process that dies again and again must not push the reason out of its log.
            rotate(self.log)
        self.process = spawn(self.argv(), log=self.log, env=self.env, cwd=Path.cwd())
        self.started_at, self.restart_at = now, None

    def poll(self, *, now: float) -> ServiceExit | None:
        """What happened since the last look: None, or its death, reported once and its restart planned."""
        process = self.process
        if process is None or process.poll() is None:
            return None
        self.deaths = next_deaths(self.deaths, uptime_s=now - self.started_at)
        pause_s = restart_pause_s(self.deaths)
        self.process, self.ended_at, self.restart_at = None, now, now + pause_s
        release(process)
        return ServiceExit(self.name, process.pid, describe_exit(process.returncode), pause_s)

    def is_due(self, *, now: float) -> bool:
        return self.process is None and self.restart_at is not None and now >= self.restart_at


def hasten_one(services: Sequence[Service]) -> Service | None:
    """Puts forward the restart of one of these when all have died; None when there is nothing to put forward."""
    waiting = [s for s in services if s.restart_at is not None]
    if not waiting or any(s.process is not None for s in services):
        return None
    first = min(waiting, key=lambda s: s.restart_at or 0.0)
    assert first.restart_at is not None
    if first.ended_at is None or first.restart_at <= first.ended_at + LAST_PAUSE_S:
        return None
    first.restart_at = first.ended_at + LAST_PAUSE_S
    return first


def next_deaths(deaths: int, *, uptime_s: float) -> int:
    """Deaths in a row, after one that came ``uptime_s`` seconds after the start."""
    return 1 if uptime_s >= HEALTHY_S else deaths + 1


def restart_pause_s(deaths: int) -> float:
    assert deaths >= 1, deaths
    return float(min(RESTART_PAUSE_MAX_S, RESTART_PAUSE_S * 2.0 ** min(deaths - 1, 16)))


def describe_exit(status: int) -> str:
    """How a process ended, in words: ``Popen.returncode`` is negative for a signal."""
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
    return f"ended with status {status}"


def stop_all(services: Sequence[Service], *, grace_s: float, is_forced: Callable[[], bool]) -> list[str]:
    """SIGTERM to all at once, SIGKILL to those left after the grace. Returns the names of the killed."""
    running = [s for s in services if s.process is not None and s.process.poll() is None]
    for service in running:
        assert service.process is not None
        service.process.send_signal(signal.SIGTERM)
    poll_until(
        lambda: is_forced() or all(s.process is None or s.process.poll() is not None for s in running),
        timeout_s=grace_s,
        interval_s=0.02,
    )
    killed = [s.name for s in running if s.process is not None and s.process.poll() is None]
    for service in services:
        if service.process is not None:
            end(service.process)
        service.process, service.restart_at = None, None
    return killed


def inherited_env(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of a feedq process: ours, with these settings on top."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **settings}


CELERY = (sys.executable, "-m", "celery", "-A", "feedq")
FEEDQ = (sys.executable, "-c", "from feedq.cli import main; main()")
METRICS_PORT, BEAT_METRICS_PORT = "FEEDQ_METRICS_PORT", "FEEDQ_BEAT_METRICS_PORT"
FLOWER_USER = "feedq"
FLOWER_ROLES = "FEEDQ_FLOWER_ROLES"
FLOWER_LOGINS = ("FLOWER_BASIC_AUTH", "FLOWER_AUTH")
"""Where somebody gave Flower a login already."""


def worker(number: int, *, capacity: int, settings: Mapping[str, str], logs: Path) -> Service:
    name = f"worker{number}"
    settings = _with_own_port(settings, METRICS_PORT, number)
    argv = (*CELERY, "worker", f"--hostname={name}@%h", f"--concurrency={capacity}", "--loglevel=INFO")
    return Service(name, "worker", lambda: argv, inherited_env(settings), logs / f"{name}.log")


def beat(number: int, *, settings: Mapping[str, str], logs: Path) -> Service:
    name = f"beat{number}"
    settings = _with_own_port(settings, BEAT_METRICS_PORT, number)
    argv = (*CELERY, "beat", "--loglevel=INFO")
    return Service(name, "beat", lambda: argv, inherited_env(settings), logs / f"{name}.log")


def _with_own_port(settings: Mapping[str, str], name: str, number: int) -> Mapping[str, str]:
    """One port cannot serve them all: the first of several has the port that was asked for."""
    port = int(settings.get(name) or 0)
    return {**settings, name: str(port + number - 1)} if port else settings


def api(*, port: Callable[[], int], settings: Mapping[str, str], logs: Path) -> Service:
    def argv() -> tuple[str, ...]:
        return (*FEEDQ, "api", "--host=127.0.0.1", f"--port={port()}")

    return Service("api", "api", argv, inherited_env(settings), logs / "api.log")


def flower(*, port: Callable[[], int], password: str, settings: Mapping[str, str], logs: Path) -> Service:
    """``password`` is that of `FLOWER_USER`; empty where the environment gives Flower its login."""

    def argv() -> tuple[str, ...]:
        return (*CELERY, "flower", "--address=127.0.0.1", f"--port={port()}")

    # In the environment, because everybody can read a command line.
    login = {FLOWER_LOGINS[0]: f"{FLOWER_USER}:{password}", **_operates()} if password else {}
    return Service("flower", "flower", argv, inherited_env(settings) | login, logs / "flower.log")


def _operates() -> dict[str, str]:
    """The role of `FLOWER_USER`, unless the environment gives roles."""
    return {} if os.environ.get(FLOWER_ROLES) else {FLOWER_ROLES: json.dumps({FLOWER_USER: "operator"})}


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
