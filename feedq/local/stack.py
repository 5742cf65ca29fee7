"""`feedq up`: servers, migrations and the fleet's processes on one machine, started, watched and stopped.

Order of the start: PostgreSQL, Valkey, migrations, then workers, beats, the API and Flower side by side; URLs in
the environment take the place of the embedded servers. Order of the stop: the processes, of which workers drain,
then Valkey and PostgreSQL.

What ends while the stack is up is started again after a pause, as often as it takes; what ends during the start is
an error that quotes its log.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from feedq.control.store import migrate
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import WorkerState
from feedq.core.passwords import mask_url
from feedq.errors import FeedqError, Unavailable
from feedq.local.datadir import DataDir
from feedq.local.postgres import Postgres
from feedq.local.process import TetheredChild, end, poll_until, rotate, spawn, tail
from feedq.local.server import Server, kept_password
from feedq.local.valkey import Valkey

DATABASE_URL, BROKER_URL = "FEEDQ_DATABASE_URL", "FEEDQ_BROKER_URL"
METRICS_PORT, BEAT_METRICS_PORT = "FEEDQ_METRICS_PORT", "FEEDQ_BEAT_METRICS_PORT"
FLOWER_LOGINS = ("FLOWER_BASIC_AUTH", "FLOWER_AUTH")
"""Where somebody gave Flower a login already."""
CELERY = (sys.executable, "-m", "celery", "-A", "feedq")

READY_TIMEOUT_S = 90.0
"""A process that is not ready by then has a reason, which its log tells."""
POLL_S = 0.2
GRACE_S = 10.0
"""A worker drains within two seconds; the rest is for a machine that is busy."""
RESTART_PAUSE_S = 5.0
"""Long enough to see that a killed worker's feeds go on elsewhere before it comes back to take its share."""


class Interrupted(Exception):
    """The stack was asked to stop while it was still starting."""


@dataclass(slots=True)
class Service:
    """A process of the fleet, with a name and a log of its own."""

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(repr=False)
    is_ready: Callable[[Service], bool]
    address: str = ""
    """Where people find it."""
    process: TetheredChild | None = None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    def start(self) -> None:
        self.process = spawn(self.argv, log=self.log, env=self.env, cwd=Path.cwd())


class LocalStack:
    """Runs feedq on one machine. Call `start`, then `tend` again and again, and `stop` in any case."""

    def __init__(self, data_dir: DataDir, report: Callable[[Mapping[str, str]], None]) -> None:
        """``report`` is told what happens, as documents with the key ``event``: ``ready`` or ``said``."""
        self.data_dir, self._report = data_dir, report
        self.settings = {k: v for k, v in os.environ.items() if k.startswith("FEEDQ_")}
        self.stop_requests = 0
        """How often we were asked to stop: once is a request, twice an order. Set by signal handlers."""
        self._servers: list[Server] = []
        self._services: list[Service] = []
        self._restarts: dict[str, float] = {}
        """When what has ended is started again, by name."""

    def say(self, text: str) -> None:
        self._report({"event": "said", "text": text})

    def ready(self, what: str, address: str = "", *, note: str = "") -> None:
        self._report({"event": "ready", "what": what, "address": address, "note": note})

    def is_forced(self) -> bool:
        return self.stop_requests > 1

    def start_servers(self) -> PostgresStore:
        """Start what is not set up elsewhere; returns the migrated control database.

        Raises `FeedqError` when something does not start, `Interrupted` when asked to stop meanwhile.
        """
        if DATABASE_URL in self.settings:
            self.ready("database", mask_url(self.settings[DATABASE_URL]), note=f"from {DATABASE_URL}")
        else:
            postgres = Postgres(self.data_dir.path, port=self.data_dir.port("postgres"))
            self._start_server(postgres)
            url = self.settings[DATABASE_URL] = postgres.owned_database()
            note = f"PostgreSQL {postgres.binaries.major}, pid {postgres.pid}"
            self.ready("database", mask_url(url), note=note)
        if BROKER_URL in self.settings:
            self.ready("broker", mask_url(self.settings[BROKER_URL]), note=f"from {BROKER_URL}")
        else:
            valkey = Valkey(self.data_dir.path, port=self.data_dir.port("valkey"))
            self._start_server(valkey)
            url = self.settings[BROKER_URL] = valkey.url()
            self.ready("broker", mask_url(url), note=f"Valkey, pid {valkey.pid}")
        applied = migrate.upgrade(self.settings[DATABASE_URL])
        self.ready("migrations", note=f"{applied} applied" if applied else "up to date")
        return PostgresStore(self.settings[DATABASE_URL], application_name="feedq-up")

    def start(self, *services: Service) -> None:
        """Start processes side by side, and report each as it becomes ready. Raises as `start_servers`."""
        self._check()
        for service in services:
            rotate(service.log)
            self._services.append(service)
            service.start()
        waiting = list(services)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while waiting:
            self._check()
            for service in tuple(waiting):
                assert service.process is not None
                if (status := service.process.poll()) is not None:
                    raise Unavailable(_explain(service, how_it_ended(status)))
                if service.is_ready(service):
                    waiting.remove(service)
                    self.ready(service.name, service.address, note=f"pid {service.pid}")
                elif time.monotonic() >= deadline:
                    raise Unavailable(_explain(service, f"is not ready after {READY_TIMEOUT_S:g} s"))
            time.sleep(POLL_S)

    def tend(self) -> None:
        """Notice what has ended, and start it again after a pause."""
        now = time.monotonic()
        everything: list[Server | Service] = [*self._servers, *self._services]
        for one in everything:
            if one.process is not None and (status := one.process.poll()) is not None:
                how = f"(pid {one.process.pid}) {how_it_ended(status)}"
                one.process = None
                self._plan_restart(one, how)
            elif now >= self._restarts.get(one.name, inf):
                del self._restarts[one.name]
                try:
                    one.start()
                except (FeedqError, OSError) as error:
                    self._plan_restart(one, f"cannot be started: {error}")
                else:
                    self.say(f"{one.name} started again (pid {one.pid})")

    def stop(self) -> bool:
        """End everything, in order. Returns whether it all ended by itself."""
        killed = stop_all(self._services, grace_s=GRACE_S, is_forced=self.is_forced)
        for server in reversed(self._servers):
            server.stop(is_forced=self.is_forced)
        # Flower ignores SIGTERM while the broker is down, and loses nothing.
        return not self.is_forced() and set(killed) <= {"flower"}

    def service(
        self,
        name: str,
        *argv: str,
        is_ready: Callable[[Service], bool],
        address: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Service:
        """A process with our environment and settings, and with ``env`` beside them."""
        whole = {**os.environ, "PYTHONUNBUFFERED": "1", **self.settings, **(env or {})}
        return Service(name, argv, self.data_dir.logs / f"{name}.log", whole, is_ready, address)

    def fleet(self, store: PostgresStore, *, workers: int, beats: int, capacity: int) -> list[Service]:
        """Workers, beats, the API and Flower."""

        def is_active(service: Service) -> bool:
            known = (view.worker for view in store.workers.views())
            return any(w.pid == service.pid and w.state is WorkerState.ACTIVE for w in known)

        def is_led(_: Service) -> bool:
            return (leader := store.fleet_state().leader) is not None and leader.leads

        made = []
        for n in range(1, workers + 1):
            argv = (*CELERY, "worker", f"--hostname=worker{n}@%h", f"--concurrency={capacity}")
            env = self._own_port(METRICS_PORT, n)
            made.append(self.service(f"worker{n}", *argv, "--loglevel=INFO", is_ready=is_active, env=env))
        for n in range(1, beats + 1):
            env = self._own_port(BEAT_METRICS_PORT, n)
            made.append(
                self.service(f"beat{n}", *CELERY, "beat", "--loglevel=INFO", is_ready=is_led, env=env)
            )
        return [*made, self._api(), self._flower()]

    def _api(self) -> Service:
        port = self.data_dir.port("api")
        command = "from feedq.cli import main; main()"
        argv = (sys.executable, "-c", command, "api", "--host=127.0.0.1", f"--port={port}")
        return self.service(
            "api", *argv, is_ready=listens_on(port), address=f"http://127.0.0.1:{port}/api/v1"
        )

    def _flower(self) -> Service:
        port = self.data_dir.port("flower")
        login, env = "", {}
        if not any(os.environ.get(name) for name in FLOWER_LOGINS):
            login = f"feedq:{kept_password(self.data_dir.path / 'flower.password', account=None)}"
            # In the environment, because everybody can read a command line. Whoever has the password of this one
            # machine may press every button, unless the environment gives roles.
            roles = self.settings.get("FEEDQ_FLOWER_ROLES") or json.dumps({"feedq": "operator"})
            env = {FLOWER_LOGINS[0]: login, "FEEDQ_FLOWER_ROLES": roles}
        return self.service(
            "flower",
            *(*CELERY, "flower", "--address=127.0.0.1", f"--port={port}"),
            is_ready=listens_on(port),
            address=f"http://{login and login + '@'}127.0.0.1:{port}",
            env=env,
        )

    def _own_port(self, name: str, number: int) -> dict[str, str]:
        """One port cannot serve them all: the first of several has the port that was asked for."""
        port = int(self.settings.get(name) or 0)
        return {name: str(port + number - 1)} if port else {}

    def _start_server(self, server: Server) -> None:
        self._check()
        self._servers.append(server)
        server.start()

    def _plan_restart(self, one: Server | Service, how: str) -> None:
        self._restarts[one.name] = time.monotonic() + RESTART_PAUSE_S
        self.say(f"{one.name} {how}; starting it again in {RESTART_PAUSE_S:g} s (log {one.log})")

    def _check(self) -> None:
        if self.stop_requests:
            raise Interrupted


def stop_all(services: Sequence[Service], *, grace_s: float, is_forced: Callable[[], bool]) -> list[str]:
    """SIGTERM to all at once, SIGKILL to those left after the grace. Returns the names of the killed."""
    running = [(s.name, s.process) for s in services if s.process is not None and s.process.poll() is None]
    for _, process in running:
        process.send_signal(signal.SIGTERM)
    poll_until(
        lambda: is_forced() or all(process.poll() is not None for _, process in running),
        timeout_s=grace_s,
        interval_s=0.02,
    )
    killed = [name for name, process in running if process.poll() is None]
    for _, process in running:
        end(process)
    return killed


def how_it_ended(status: int) -> str:
    """An exit status in words: ``Popen.returncode`` is negative for a signal."""
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by signal {-status} ({signal.strsignal(-status)})"


def listens_on(port: int) -> Callable[[object], bool]:
    """Tells whether somebody accepts connections on a port of this machine."""

    def listens(_: object) -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            return False
        return True

    return listens


def _explain(one: Server | Service, what: str) -> str:
    return f"{one.name} {what}; its log {one.log} ends:\n{tail(one.log)}"
