"""`Node`: a local process with the face of a Docker container.

pytest-celery drives its brokers, backends and workers through docker-py's container object. A `Node` offers
what the tests let it use of that (``attrs, id, name, status, reload, logs``) over a child process, so its
classes run unchanged without Docker. The chaos tests use the same nodes, and signals.

Invariants: a node is a process group of its own and ends with the test run; it is ended by its own process
id, never by name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from feedq.local.process import spawn
from tests import leftovers

KILL_TIMEOUT_S = 10.0
INHERITED = (
    *("PATH", "PYTHONPATH", "LANG", "LC_ALL", "HOME", "VIRTUAL_ENV", "COVERAGE_PROCESS_START"),
    leftovers.VARIABLE,
)
"""Variables that the processes of tests get from the test run."""


class Process(Protocol):
    """What a node needs of its process, wherever that comes from."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float) -> int: ...


class Node:
    """One process of a cluster."""

    def __init__(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, id: str = ""
    ) -> None:
        self.name = name
        self.id = id or uuid.uuid4().hex
        self.argv = tuple(argv)
        self.env = dict(env)
        self.cwd = cwd
        self.log = log
        self._process: Process | None = None
        self._frozen = False

    def start(self) -> None:
        assert self._process is None or self._process.poll() is not None, f"{self.name} runs already"
        self._process = spawn(self.argv, log=self.log, env=self.env, cwd=self.cwd)
        self._frozen = False

    @property
    def process(self) -> Process:
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # -- faults --------------------------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> float:
        """Send a signal to the process; returns the monotonic moment just before."""
        return self._send(os.kill, number)

    def freeze(self) -> float:
        """SIGSTOP the whole group. Returns the moment just before."""
        moment = self._send(os.killpg, signal.SIGSTOP)
        self._frozen = True
        return moment

    def thaw(self) -> float:
        moment = self._send(os.killpg, signal.SIGCONT)
        self._frozen = False
        return moment

    def _send(self, send: Callable[[int, int], None], number: int) -> float:
        if not self.is_running():
            # Its number may be that of a stranger by now.
            raise ProcessLookupError(f"{self.name} has ended")
        moment = time.monotonic()
        send(self.pid, number)
        return moment

    def wait(self, timeout_s: float) -> int:
        """The exit status, once it has ended. Raises `subprocess.TimeoutExpired`."""
        return self.process.wait(timeout_s)

    def end(self, *, grace_s: float = 0.0) -> None:
        """End the whole group: SIGTERM with some grace, if any, then SIGKILL."""
        if self._process is None:
            return
        if grace_s and self.is_running() and not self._frozen:
            self.signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.wait(grace_s)
        if self.is_running():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.process.wait(KILL_TIMEOUT_S)
        else:
            # The number may be that of a stranger's group by now, such as a session of a database.
            leftovers.end([left for left in leftovers.of_this_run() if _group(left.pid) == self.pid])

    # -- what it said --------------------------------------------------------------------------------

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def events(self, event: str | None = None) -> list[dict[str, Any]]:
        """Its structured log (``FEEDQ_LOG_FORMAT=json``); other lines are left out."""
        found = []
        for line in self.log.read_bytes().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and (event is None or entry.get("event") == event):
                found.append(entry)
        return found

    # -- docker-py's container -----------------------------------------------------------------------

    @property
    def attrs(self) -> dict[str, Any]:
        return {
            "Config": {"Hostname": "127.0.0.1", "Env": [f"{k}={v}" for k, v in self.env.items()]},
            "HostConfig": {"PortBindings": {}},
            "NetworkSettings": {"Networks": {}, "Ports": {}},
        }

    @property
    def status(self) -> str:
        if not self.is_running():
            return "exited"
        return "paused" if self._frozen else "running"

    def reload(self) -> None:
        """A container's attributes are a copy to be refreshed; a process's are always current."""

    def logs(self) -> bytes:
        return self.text().encode()


def _group(pid: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None
