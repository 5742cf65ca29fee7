"""`feedq up`: servers, migrations and the fleet's processes on one machine, started, watched and stopped.

Order of the start: PostgreSQL, Valkey, migrations, then workers, beats, the API and Flower side by side; URLs in
the environment take the place of the embedded servers. Order of the stop: Flower, the API, beats, workers (which
drain), whatever else was added, Valkey, PostgreSQL.

What dies by itself while the stack is up is started again (`feedq.local.local_service`); what dies during the
start is an error that quotes its log. All of it runs in the main thread: the children are tied to it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from feedq.control.store import migrate
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import WorkerState
from feedq.core.passwords import mask_url
from feedq.errors import FeedqError, Unavailable
from feedq.local import local_service
from feedq.local.datadir import DataDir, Ports, StackState
from feedq.local.local_service import Service, describe_exit, hasten_one, stop_all
from feedq.local.postgres import Postgres
from feedq.local.process import tail
from feedq.local.server import Server, kept_password
from feedq.local.valkey import Valkey

DATABASE_URL = "FEEDQ_DATABASE_URL"
BROKER_URL = "FEEDQ_BROKER_URL"
READY_TIMEOUT_S = 90.0
"""A process that is not ready by then has a reason, which its log tells."""
NEVER_WITHOUT = ("worker", "beat")
"""Of these one is started again at once when none is left: its own pauses must not be why nothing streams."""
POLL_S = 0.2
RETRY_S = 10.0
WORKER_GRACE_S = 10.0
"""A worker drains within two seconds; the rest is for a machine that is busy."""
BEAT_GRACE_S = 5.0
API_GRACE_S = 5.0
"""Requests under way end within it, or are cut off; what they change is a transaction."""
FLOWER_GRACE_S = 3.0
"""Flower ignores SIGTERM while the broker is down; it has nothing to lose."""


class Interrupted(Exception):
    """The stack was asked to stop while it was still starting."""


class StackOutput(Protocol):
    """Where the stack says what happens."""

    def ready(self, what: str, address: str = "", *, note: str = "") -> None:
        """Something is up, and where."""

    def say(self, text: str) -> None: ...


class StopRequests:
    """How often we were asked to stop: once is a request, twice an order. Set by signal handlers."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1

    @property
    def requested(self) -> bool:
        return self.count > 0

    def forced(self) -> bool:
        return self.count > 1


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What to start."""

    data_dir: Path
    workers: int = 3
    beats: int = 2
    capacity: int = 500
    """Feeds that each worker may hold."""
    port_base: int | None = None


class LocalStack:
    """Runs feedq on one machine. Call `start`, then `tend` again and again, and `stop` in any case."""

    def __init__(self, options: StackOptions, reporter: StackOutput, stops: StopRequests) -> None:
        self.options, self.reporter, self.stops = options, reporter, stops
        self.data_dir = DataDir(options.data_dir)
        self.ports = Ports(self.data_dir, base=options.port_base)
        self.settings: dict[str, str] = {k: v for k, v in os.environ.items() if k.startswith("FEEDQ_")}
        self.flower_url = ""
        """The link to Flower's pages, with its login."""
        self._flower_password, self._flower_at, self._api_at = "", "", ""
        self.servers: list[Server] = []
        self.services: list[Service] = []
        self._store: PostgresStore | None = None
        self._next_server_try = 0.0
        self._is_open = False

    @property
    def store(self) -> PostgresStore:
        assert self._store is not None, "the stack has not been started"
        return self._store

    @property
    def database_url(self) -> str:
        return self.settings[DATABASE_URL]

    def start(self, *, before_fleet: Callable[[LocalStack], None] | None = None) -> None:
        """Start everything and wait until it is ready; ``before_fleet`` may add to a migrated database.

        Raises `FeedqError` when something does not start, `Interrupted` when asked to stop meanwhile.
        """
        self.data_dir.open()
        self._is_open = True
        self._start_servers()
        applied = migrate.upgrade(self.database_url)
        self.reporter.ready("migrations", note=f"{applied} applied" if applied else "up to date")
        self._store = PostgresStore(self.database_url, application_name="feedq-up")
        self._check()
        if before_fleet is not None:
            before_fleet(self)
        self._start_fleet()
        self._write_state()

    def tend(self) -> None:
        """Notice what has died, and start again what is due."""
        now = time.monotonic()
        for service in self.services:
            ended = service.poll(now=now)
            if ended is not None:
                self.reporter.say(
                    f"{ended.name} (pid {ended.pid}) {ended.how}; "
                    f"starting it again in {ended.restart_in_s:g} s (log {service.log})"
                )
        for kind in NEVER_WITHOUT:
            hastened = hasten_one(self._of(kind))
            if hastened is not None:
                self.reporter.say(f"no {kind} is left; starting {hastened.name} again now")
        for service in self.services:
            if service.is_due(now=now):
                self._start_again(service, now=now)
        if now >= self._next_server_try:
            self._mend_servers()

    def stop(self) -> bool:
        """End everything, in order. Returns whether it all ended by itself."""
        killed: list[str] = []
        is_forced = self.stops.forced
        for kind, grace_s in (
            ("flower", FLOWER_GRACE_S),
            ("api", API_GRACE_S),
            ("beat", BEAT_GRACE_S),
            ("worker", WORKER_GRACE_S),
        ):
            killed += stop_all(self._of(kind), grace_s=grace_s, is_forced=is_forced)
        rest = [s for s in self.services if s.process is not None]
        killed += stop_all(rest, grace_s=BEAT_GRACE_S, is_forced=is_forced)
        if self._store is not None:
            self._store.close()
            self._store = None
        for server in reversed(self.servers):
            server.stop(is_forced=is_forced)
        if self._is_open:
            self.data_dir.close()
            self._is_open = False
        # Flower is known to need it, and loses nothing.
        return not is_forced() and set(killed) <= {"flower"}

    def add(self, service: Service, *, is_ready: Callable[[], bool], address: str) -> None:
        """Start one more process and wait for it."""
        self.services.append(service)
        service.start(now=time.monotonic())
        self._await_all({service.name: is_ready}, address=address)

    def _start_servers(self) -> None:
        if DATABASE_URL in self.settings:
            self.reporter.ready("database", mask_url(self.database_url), note=f"from {DATABASE_URL}")
        else:
            postgres = Postgres(self.data_dir.path, port=self.ports.choose("postgres"))
            self._start_server(postgres)
            self.settings[DATABASE_URL] = postgres.make_owner()
            note = f"PostgreSQL {postgres.binaries.major}, pid {postgres.pid}"
            self.reporter.ready("database", mask_url(self.database_url), note=note)
        if BROKER_URL in self.settings:
            self.reporter.ready("broker", mask_url(self.settings[BROKER_URL]), note=f"from {BROKER_URL}")
        else:
            valkey = Valkey(self.data_dir.path, port=self.ports.choose("valkey"))
            self._start_server(valkey)
            self.settings[BROKER_URL] = valkey.url()
            self.reporter.ready("broker", mask_url(valkey.url()), note=f"Valkey, pid {valkey.pid}")

    def _start_again(self, service: Service, *, now: float) -> None:
        try:
            service.start(now=now)
        except (FeedqError, OSError) as error:
            service.ended_at, service.restart_at = None, now + RETRY_S
            self.reporter.say(f"{service.name} cannot be started; trying again in {RETRY_S:g} s: {error}")
            return
        where = self._addresses.get(service.kind)
        address = f" at {where}" if where else ""
        self.reporter.say(f"{service.name} started again{address} (pid {service.pid})")
        self._write_state()

    def _write_state(self) -> None:
        self.data_dir.write_state(StackState(os.getpid(), self.settings, self.flower_url))

    def _start_server(self, server: Server) -> None:
        self._check()
        self.servers.append(server)
        server.start()

    def _start_fleet(self) -> None:
        options, logs = self.options, self.data_dir.logs
        workers = [
            local_service.worker(n, capacity=options.capacity, settings=self.settings, logs=logs)
            for n in range(1, options.workers + 1)
        ]
        beats = [
            local_service.beat(n, settings=self.settings, logs=logs) for n in range(1, options.beats + 1)
        ]
        if not any(os.environ.get(name) for name in local_service.FLOWER_LOGINS):
            self._flower_password = kept_password(self.data_dir.path / "flower.password", account=None)
        flower = local_service.flower(
            port=self._flower_port,
            password=self._flower_password,
            settings=self.settings,
            logs=logs,
        )
        api = local_service.api(port=self._api_port, settings=self.settings, logs=logs)
        started = [*workers, *beats, api, flower]
        self.services = [*started, *self.services]
        now = time.monotonic()
        for service in started:
            service.start(now=now)
        conditions: dict[str, Callable[[], bool]] = {}
        for service in workers:
            conditions[service.name] = self._is_active(service)
        for service in beats:
            conditions[service.name] = self._is_beating(service)
        conditions[flower.name] = lambda: local_service.answers_http(f"http://{self._flower_at}/healthcheck")
        conditions[api.name] = lambda: local_service.answers_http(f"{self._api_at}/healthz")
        self._await_all(conditions)

    def _api_port(self) -> int:
        port = self.ports.choose("api")
        self._api_at = f"http://127.0.0.1:{port}"
        return port

    def _flower_port(self) -> int:
        port = self.ports.choose("flower")
        self._flower_at = f"127.0.0.1:{port}"
        login = f"{local_service.FLOWER_USER}:{self._flower_password}@" if self._flower_password else ""
        self.flower_url = f"http://{login}{self._flower_at}"
        return port

    @property
    def _addresses(self) -> Mapping[str, str]:
        """Links of what people open, by kind of process."""
        return {"flower": self.flower_url, "api": f"{self._api_at}/api/v1"}

    def _is_active(self, service: Service) -> Callable[[], bool]:
        def is_active() -> bool:
            workers = (view.worker for view in self.store.workers.views())
            return any(w.pid == service.pid and w.state is WorkerState.ACTIVE for w in workers)

        return is_active

    def _is_beating(self, service: Service) -> Callable[[], bool]:
        # Only the elected one shows in the database: of the others, the first log line must do.
        def is_beating() -> bool:
            has_begun = service.log.exists() and service.log.stat().st_size > 0
            return has_begun and (leader := self.store.fleet_state().leader) is not None and leader.leads

        return is_beating

    def _await_all(self, conditions: Mapping[str, Callable[[], bool]], *, address: str = "") -> None:
        """Report each as it becomes ready. Raises `Unavailable` for the first that dies or takes too long."""
        waiting = {s.name: s for s in self.services if s.name in conditions}
        deadline = time.monotonic() + READY_TIMEOUT_S
        while waiting:
            self._check()
            for name, service in list(waiting.items()):
                process = service.process
                assert process is not None
                if process.poll() is not None:
                    raise Unavailable(_explain(service, describe_exit(process.returncode)))
                if conditions[name]():
                    del waiting[name]
                    where = self._addresses.get(service.kind, address)
                    self.reporter.ready(name, where, note=f"pid {service.pid}")
                elif time.monotonic() >= deadline:
                    raise Unavailable(_explain(service, f"is not ready after {READY_TIMEOUT_S:g} s"))
            time.sleep(POLL_S)

    def _mend_servers(self) -> None:
        for server in self.servers:
            if server.is_running:
                continue
            self.reporter.say(f"{server.kind} has ended; starting it again (log {server.log})")
            try:
                server.restart()
            except FeedqError as error:
                self._next_server_try = time.monotonic() + RETRY_S
                self.reporter.say(f"{server.kind} does not start; trying again in {RETRY_S:g} s: {error}")
            else:
                self.reporter.say(f"{server.kind} started again (pid {server.pid})")

    def _of(self, kind: str) -> list[Service]:
        return [s for s in self.services if s.kind == kind]

    def _check(self) -> None:
        if self.stops.requested:
            raise Interrupted


def _explain(service: Service, what: str) -> str:
    return f"{service.name} {what}; its log {service.log} ends:\n{tail(service.log)}"
