"""The simulation: what follows from what, and when.

Workers (`feedq.simulate.fleet_worker`) run on the core that runs in production, the beat makes the passes of
`feedq.control`, and both talk to a control database in memory (`feedq.simulate.memory`). Nothing sleeps: the
agenda jumps from one appointment to the next. The same scenario, settings and seed give the same report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Final
from uuid import UUID

from feedq.control import PASSES_IN_A_ROW, make_passes
from feedq.lease import SECOND_CHECK_S
from feedq.limits import AFTER_FAST_PATH_S, WHOLE_PASS_EVERY_S
from feedq.model import Assignment, LeaseState, WorkerState
from feedq.settings import Settings
from feedq.simulate.agenda import BEGINNING, Agenda, AgendaClock, to_ms
from feedq.simulate.delays import Timing
from feedq.simulate.fleet_worker import FleetWorker
from feedq.simulate.memory import SimulatedStore
from feedq.simulate.memory.counts import OWNED
from feedq.simulate.memory.database import SimulatedDatabase
from feedq.simulate.plot import Plot
from feedq.simulate.record import Recorder
from feedq.simulate.report import SimulationReport, build_report
from feedq.simulate.scenario import Scenario

TICK_MS_MIN: Final = 100
"""An interval of 0 would never let time go on."""
LOOK_AGAIN_S: Final = 0.25
"""After a look that found something which the pass has left as it was."""
AS_ALWAYS = timedelta(days=1)
"""For so long the database has served already: it is not what starts cold."""
NOTHING_TO_SWEEP = {"sweep_interval_s": 86_400.0, "measured_load": 0.0}
"""Nobody changes rows by hand here, and feeds have no load that could be measured."""


def simulate(scenario: Scenario, settings: Settings, timing: Timing | None = None) -> SimulationReport:
    """Run a scenario to its end. Raises `InvalidInput` when an event names a worker that is not there."""
    return Engine(scenario, settings, timing or Timing()).run()


class Engine:
    """Runs one simulation."""

    def __init__(self, scenario: Scenario, settings: Settings, timing: Timing) -> None:
        self.scenario, self.timing = scenario, timing
        self.settings = settings.model_copy(update=NOTHING_TO_SWEEP)
        self.rng = Random(scenario.seed)
        self.agenda = Agenda()
        self.end = to_ms(scenario.duration_s)
        self.recorder = Recorder(self.end)
        self.clock = AgendaClock(self.agenda)
        database = SimulatedDatabase(self.clock, on_wake=self.wake, on_notify=self._notify)
        database.tables.alive_since -= AS_ALWAYS
        self.store = SimulatedStore(database, restart_hold_s=settings.restart_hold_s)
        self.workers: dict[str, FleetWorker] = {}
        """The latest process of each name."""
        self.away: set[str] = set()
        """Remote hosts that refuse connections."""
        self._interval = max(TICK_MS_MIN, to_ms(settings.reconcile_interval_s))
        self._pass_at: int | None = None
        self._whole_pass_at = -self._interval
        self._look_at: int | None = None
        self._looks_at = self.rng.randrange(self._look_interval)

    def run(self) -> SimulationReport:
        plot = Plot(self)
        plot.begin()
        for event in sorted(self.scenario.events, key=lambda event: event.at_s):
            self.agenda.at(to_ms(event.at_s), partial(plot.happen, event))
        self.agenda.at(self.rng.randrange(self._interval), self._tick)
        self.agenda.run(self.end, before_jump=self.advance)
        plot.finish()
        return build_report(self.recorder, workers=len(self.up()), duration_ms=self.end)

    def up(self) -> list[FleetWorker]:
        """Lists the workers whose process runs and is not about to end."""
        return [worker for worker in self.workers.values() if worker.is_up and not worker.is_leaving]

    def start(self, name: str, *, capacity: int, labels: Mapping[str, str]) -> None:
        self.workers[name] = worker = FleetWorker(
            name,
            store=self.store,
            settings=self.settings,
            clock=self.clock,
            capacity=capacity,
            labels=labels,
            timing=self.timing,
            rng=self.rng,
            recorder=self.recorder,
            away=self.away,
            reconcile=self.wake,
        )
        worker.start()

    def advance(self, to: int) -> None:
        """Goes on to the time ``to``; everything stays as it is until then."""
        self.recorder.advance(to, unplaced=self._unplaced(), feeds=self._feeds_held)

    def _unplaced(self) -> int:
        leases = self.store.database.tables.leases
        return len(leases.in_state[LeaseState.IDLE]) - len(leases.delayed)

    def _feeds_held(self) -> dict[str, int]:
        tables = self.store.database.tables
        there = (worker for worker in tables.workers.values() if worker.state is not WorkerState.GONE)
        return {worker.name: tables.leases.number_held(worker.id, *OWNED) for worker in there}

    def _notify(self, worker_id: UUID) -> None:
        worker = self.workers[self.store.database.tables.workers[worker_id].name]
        if worker.worker is not None and worker.worker.id == worker_id:
            worker.hear()

    # -- the beat ------------------------------------------------------------------------------------

    def wake(self, after_s: float = 0.0) -> None:
        """Ask for a reconcile pass, if none is coming as soon."""
        when = self.agenda.now + to_ms(max(after_s, self.timing.wake_s))
        if self._pass_at is None or when < self._pass_at:
            self._pass_at = when
            self.agenda.at(when, partial(self._pass, when))

    def _tick(self) -> None:
        self.wake()
        self.agenda.at(self.agenda.now + self._interval, self._tick)

    def _pass(self, when: int) -> None:
        """Makes a pass as the elected beat does: soon after a whole one only feeds that wait are placed."""
        if self._pass_at != when:
            return
        self._pass_at = None
        placing_only = when < self._whole_pass_at + to_ms(WHOLE_PASS_EVERY_S)
        if not placing_only:
            self._whole_pass_at = when
        report = make_passes(
            self.store.fleet,
            self._dispatched,
            self.settings,
            passes=PASSES_IN_A_ROW,
            placing_only=placing_only,
        )
        assert report is not None, "there is one beat"
        if report.can_wait:
            self.wake(AFTER_FAST_PATH_S)
        elif placing_only:
            self.wake(WHOLE_PASS_EVERY_S)
        self._look_when_due()

    def _dispatched(self, assignments: Sequence[Assignment]) -> None:
        names = self.store.database.tables.workers
        for assignment in assignments:
            self.recorder.given(self.recorder.feeds[assignment.feed_id], names[assignment.worker_id].name)

    @property
    def _look_interval(self) -> int:
        return max(1, to_ms(self.settings.look_interval_s))

    def look(self, at: int) -> None:
        """Has the beat look at that time, or at its first look after it."""
        when = at + (self._looks_at - at) % self._look_interval
        if self._look_at is None or when < self._look_at:
            self._look_at = when
            self.agenda.at(when, partial(self._check, when))

    def _check(self, when: int) -> None:
        if self._look_at != when:
            return
        self._look_at = None
        suspected = self.store.suspected
        if self.store.check_liveness() or self.store.is_due(settle_s=self.settings.settle_s):
            self.wake()
        if self.store.suspected - suspected:
            self.look(when + to_ms(SECOND_CHECK_S))
        self._look_when_due()

    def _look_when_due(self) -> None:
        """Has the beat look when something can have fallen due: no look before finds anything."""
        workers = self.store.database.tables.workers.values()
        expires = min((w.expires_at for w in workers if w.state is not WorkerState.GONE), default=None)
        due = self.store.falls_due_at(settle_s=self.settings.settle_s)
        soonest = self.agenda.now + to_ms(LOOK_AGAIN_S)
        for at in (expires, due):
            if at is not None:
                self.look(max(soonest, _ms(at)))


def _ms(at: datetime) -> int:
    return to_ms((at - BEGINNING).total_seconds())
