"""The `feedq` command in this process, on a control database in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import msgspec
from click.testing import CliRunner, Result

from feedq.cli import main
from feedq.cli.invocation import Invocation
from feedq.control import reconcile as control
from feedq.control.store.fleet_state import FleetState, Leader
from feedq.control.store.postgresql import PostgresStore
from feedq.core.clock import Clock, SystemClock
from feedq.core.model import (
    Assignment,
    FeedSpec,
    FeedView,
    Load,
    NewWorker,
    ProgressReport,
    Reason,
    Release,
    TargetState,
    Worker,
)
from feedq.core.roles import AccessRole, Caller
from feedq.errors import InvalidInput
from feedq.settings import Settings
from feedq.sinks.base import Sink
from feedq.verbs.registry import At, Told
from tests.asking import send_heartbeat
from tests.fakes import ManualClock
from tests.fakes.control import current
from tests.fakes.sink import SinkFile

URL = "tcp://127.0.0.1:7001"


def led(clock: Clock, *, pass_age_s: float | None = 1.0, leads: bool = True) -> FleetState:
    """A fleet whose beat leads, and whose last reconcile pass was just now."""
    now = clock.now()
    leader = Leader("host", 99, now, now + timedelta(seconds=5 if leads else -5), leads=leads)
    return FleetState(now, now, pass_age_s, leader)


class FakeInvocation(Invocation):
    """A call of the command, on the control database and sinks of the test."""

    def __init__(
        self,
        store: PostgresStore,
        *,
        clock: Clock | None = None,
        fleet: FleetState | None = None,
        sinks: Mapping[str, Sink] | None = None,
    ) -> None:
        super().__init__(clock=clock or SystemClock(), stack_dir=None)
        self.store, self._fleet, self._sinks = store, fleet, sinks

    @contextmanager
    def open_sink(self, name: str) -> Iterator[Sink]:
        if self._sinks is not None and name not in self._sinks:
            raise InvalidInput(f"sink {name!r} is not set up here")
        yield SinkFile(environment="default").sink() if self._sinks is None else self._sinks[name]

    def at(self, told: Told | None) -> At:
        there = SimpleNamespace(
            feeds=self.store.feeds,
            workers=self.store.workers,
            jobs=self.store.jobs,
            listing=self.store.listing,
            fleet_state=lambda: self._fleet or led(self.clock),
            job_state=self.store.job_state,
            scheduled_tasks=self.store.scheduled_tasks,
            now=self.clock.now,
        )
        caller = Caller("a test", AccessRole.ADMIN)
        at = At(cast("PostgresStore", there), self.settings, caller, self.open_sink)
        return at if told is None else replace(at, told=told)


class Command:
    """Runs commands and keeps the fleet that they see; any sink that they name, or ``sink`` alone, is there."""

    def __init__(self, sink: Sink | None = None) -> None:
        self.store = current().fresh_store()
        self.clock = self.store.clock
        self.fleet: FleetState | None = None
        self._sinks = None if sink is None else {"default": sink}

    def run(self, *arguments: str, given: str | bytes | None = None) -> Result:
        invocation = FakeInvocation(self.store, clock=self.clock, fleet=self.fleet, sinks=self._sinks)
        return CliRunner().invoke(main, list(arguments), obj=invocation, input=given)

    def ok(self, *arguments: str, given: str | bytes | None = None) -> str:
        """Standard output of a command that must succeed."""
        result = self.run(*arguments, given=given)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str, given: str | None = None) -> Any:
        return msgspec.json.decode(self.ok(*arguments, "--json", given=given))

    def refused(self, *arguments: str, given: str | bytes | None = None, status: int = 2) -> str:
        """Standard error of a command that must fail with a message and nothing on standard output."""
        result = self.run(*arguments, given=given)
        assert result.exit_code == status, result.output
        assert "Traceback" not in result.output
        assert result.stdout == ""
        return result.stderr

    # -- the fleet -----------------------------------------------------------------------------------

    def feed(self, name: str, **changes: Any) -> FeedSpec:
        fields: dict[str, Any] = {"connector": "tcp", "source": {"url": URL}, "sink": {"table": "t"}}
        spec = FeedSpec.of({"name": name, "target_state": TargetState.RUNNING} | fields | changes)
        self.store.feeds.add(spec)
        return spec

    def spec(self, name: str) -> FeedSpec:
        return self.store.feeds.get(name).spec

    def view(self, name: str) -> FeedView:
        return self.store.feeds.view(name)

    def worker(self, name: str, *, capacity: int = 10) -> Worker:
        """A worker that has settled."""
        new = NewWorker(uuid4(), name, f"node.{name}", capacity, "host", 4711, "0.1.0")
        worker = self.store.workers.register(new, ttl_s=1e6)
        send_heartbeat(self.store, worker.id, Load(feeds=1, cpu=0.25, rss=50_000_000), ttl_s=1e6)
        self.clock.advance(60)
        return worker

    def reconcile(self) -> list[Assignment]:
        sent: list[Assignment] = []
        control.reconcile(self.store, sent.extend, Settings())
        return sent

    def stream(self) -> None:
        """Place what waits; the workers claim it and report 1,000 records each."""
        for assignment in self.reconcile():
            self.store.leases.claim(assignment.worker_id, [assignment.key])
            self.report(assignment.worker_id, assignment.feed_id, assignment.epoch)

    def report(self, worker_id: UUID, feed_id: int, epoch: int, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "records": 1_000,
            "bytes": 123_456,
            "dead_letters": 0,
            "last_record_ago_s": 0.0,
            "cursor": {"seq": 1},
            "connected": True,
            "stalled": False,
            "attempts": 0,
            "error": None,
        }
        self.store.leases.report(worker_id, [ProgressReport(feed_id, epoch, **(fields | changes))])

    def release(self, name: str, reason: Reason, *, error: str | None = None) -> None:
        lease = self.view(name).lease
        assert lease.worker_id is not None
        self.store.leases.release(lease.worker_id, [Release(lease.feed_id, lease.epoch, reason, error=error)])

    def during_waits(self, act: Callable[[], object]) -> None:
        """Do ``act`` whenever a command looks at the clock to see how long it has waited."""
        clock = self.clock
        look = clock.monotonic

        class Acting(ManualClock):
            def monotonic(self) -> float:
                act()
                return look()

            def now(self) -> Any:
                return clock.now()

        self.clock = Acting()
