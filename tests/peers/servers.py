"""Servers of other projects, each started for a test: on loopback, at a free port, in a directory of its own.

::

    with PeerServer("mosquitto", "-p", "{port}", directory=tmp_path) as server:
        ...  # server.port accepts connections

A program that is missing fails the test, and the message says which package holds it: `make peers` is run
where the packages are, and leaving a test out there would go unnoticed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from feedq.local.process import TetheredChild, end, free_port, poll_until, spawn, tail

PATIENCE_S = 20.0
"""How long a server may take to get ready; only one that fails takes this long."""
STOP_S = 5.0

PACKAGES = {
    "chromium": "chromium",
    "epmd": "erlang-base",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
    "mosquitto": "mosquitto",
    "mosquitto_passwd": "mosquitto",
    "mosquitto_pub": "mosquitto-clients",
    "nats-server": "nats-server",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "/usr/lib/rabbitmq/bin/rabbitmq-server": "rabbitmq-server",
}
"""The Debian package of each program that these tests need."""


def program(name: str) -> str:
    """The path of a program. Fails, saying what to install, if there is none."""
    found = _find(name)
    if found is None:
        raise AssertionError(f"needs the program {name}: apt-get install {PACKAGES.get(name, name)}")
    return found


def missing_packages() -> list[str]:
    """What would have to be installed for all of these tests."""
    return sorted({package for name, package in PACKAGES.items() if _find(name) is None})


def _find(name: str) -> str | None:
    # Debian puts daemons where an ordinary user's PATH does not lead.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    return shutil.which(name, path=path)


class PeerServer:
    """One server; a context manager, which may be entered again to start it anew on the same port.

    In ``args``, ``{port}`` and ``{directory}`` stand for its port and directory. It ends with the test run, at the
    latest.
    """

    def __init__(
        self,
        name: str,
        *args: str,
        directory: Path,
        port: int | None = None,
        ready: Callable[[], bool] | None = None,
        env: Mapping[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        patience_s: float = PATIENCE_S,
        log: str | None = None,
    ) -> None:
        """``ready`` says whether it can be used; if it is not given, when its port accepts connections.

        ``log`` is the name of its log file, that of the program unless given.
        """
        self.port = free_port() if port is None else port
        self.directory = directory
        self.log = directory / (log or f"{name}.log")
        places = {"{port}": str(self.port), "{directory}": str(directory)}
        self._argv = [program(name), *(_fill(arg, places) for arg in args)]
        self._name = name
        self._env = dict(os.environ if env is None else env)
        self._ready = ready or (lambda: accepts(self.port))
        self._stop_signal = stop_signal
        self._patience_s = patience_s
        self._process: TetheredChild | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self._name} is not running"
        return self._process.pid

    def start(self) -> None:
        """Return once it is ready; fails with the end of its log."""
        assert self._process is None, f"{self._name} is running already"
        self._process = spawn(self._argv, log=self.log, env=self._env, cwd=self.directory)
        process = self._process
        poll_until(
            lambda: process.poll() is not None or self._ready(), timeout_s=self._patience_s, interval_s=0.02
        )
        if process.poll() is not None or not self._ready():
            status = process.poll()
            self.stop()
            what = "is not ready" if status is None else f"ended with status {status}"
            raise AssertionError(f"{' '.join(self._argv)} {what}:\n{tail(self.log)}")

    def stop(self) -> None:
        """Ask it to end, and end it if it does not. May be repeated."""
        if self._process is not None:
            end(self._process, (self._stop_signal, STOP_S))
            self._process = None

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            end(self._process)
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def accepts(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def _fill(arg: str, places: Mapping[str, str]) -> str:
    for place, value in places.items():
        arg = arg.replace(place, value)
    return arg


if __name__ == "__main__":
    # For .ci/run, which installs them.
    print(*missing_packages())
