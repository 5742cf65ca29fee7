"""The simulation: what follows from what, and when.

A fleet goes through the same steps as a real one. An event changes what runs; the beat notices after the time it
takes to notice; a reconcile pass decides; workers claim, wait for their turn to dial, and stream. Nothing
sleeps: the agenda jumps from one appointment to the next. The same scenario, settings and seed give the same
report.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Final

from feedq.backoff import RetryElsewhere, next_try
from feedq.lease import Move
from feedq.model import LeaseState, Reason
from feedq.settings import Settings
from feedq.simulate.agenda import Agenda, to_ms
from feedq.simulate.delays import Timing
from feedq.simulate.plot import Plot
from feedq.simulate.reconcile import Reconcile
from feedq.simulate.record import Recorder
from feedq.simulate.report import SimulationReport, build_report
from feedq.simulate.scenario import Scenario
from feedq.simulate.simulated_fleet import SimulatedFeed, SimulatedFleet, SimulatedWorker

TURNS_MS: Final = 10
"""How often at most it is looked who may dial: fine enough for people, and a tenth of the work."""

TICK_MS_MIN: Final = 100
"""An interval of 0 would never let time go on."""


def simulate(scenario: Scenario, settings: Settings, timing: Timing | None = None) -> SimulationReport:
    """Run a scenario to its end. Raises `InvalidInput` when an event names a worker that is not there."""
    return Engine(scenario, settings, timing or Timing()).run()


class Engine:
    """One simulation."""

    def __init__(self, scenario: Scenario, settings: Settings, timing: Timing) -> None:
        self.scenario, self.settings, self.timing = scenario, settings, timing
        self.rng = Random(scenario.seed)
        self.agenda = Agenda()
        self.end = to_ms(scenario.duration_s)
        self.recorder = Recorder(self.end)
        self.fleet = SimulatedFleet(self.recorder, settings.rules)
        self.away: set[str] = set()
        """Remote hosts that refuse connections."""
        self._reconcile = Reconcile(self.fleet, self.settings)
        self._interval = max(TICK_MS_MIN, to_ms(settings.reconcile_interval_s))
        self._pass_at: int | None = None
        self._seen = -1
        """The state of the fleet that the last pass has left."""
        self.looks_at = self.rng.randrange(max(1, to_ms(settings.look_interval_s)))

    def run(self) -> SimulationReport:
        plot = Plot(self)
        plot.begin()
        for event in sorted(self.scenario.events, key=lambda event: event.at_s):
            self.agenda.at(to_ms(event.at_s), partial(plot.happen, event))
        self.agenda.at(self.rng.randrange(self._interval), self._tick)
        self.agenda.run(self.end, before_jump=self.advance)
        plot.finish()
        return build_report(self.recorder, self.fleet, duration_ms=self.end)

    def advance(self, to: int) -> None:
        """Everything stays as it is until ``to``."""
        self.recorder.advance(to, unplaced=len(self.fleet.waiting), feeds=self._counts)

    def _counts(self) -> dict[str, int]:
        return {w.name: len(w.leases) for w in self.fleet.sessions.values()}

    # -- passes --------------------------------------------------------------------------------------

    def wake(self, at: int = 0) -> None:
        """Ask for a reconcile pass, now or then, if none is coming as soon."""
        when = max(at, self.agenda.now + to_ms(self.timing.wake_s))
        if self._pass_at is None or when < self._pass_at:
            self._pass_at = when
            self.agenda.at(when, partial(self._pass, when))

    def _tick(self) -> None:
        # A pass over a fleet in which nothing changed would decide what the last one did.
        if self.fleet.changes != self._seen:
            self.wake()
        self.agenda.at(self.agenda.now + self._interval, self._tick)

    def _pass(self, when: int) -> None:
        if self._pass_at != when:
            return
        self._pass_at = None
        decided = self._reconcile.run(self.agenda.now)
        self._seen = self.fleet.changes
        if decided.assigned:
            tenures = [(feed, feed.epoch) for feed in decided.assigned]
            self.agenda.after(self.timing.start_s, partial(self._claim, tenures))
        if decided.moving:
            self.let_go(decided.moving)
        if decided.more:
            self.wake()
        if decided.settling:
            first = min((w.started_at for w in self.fleet.sessions.values() if w.serves), default=when)
            self.wake(first + to_ms(self.settings.settle_s))

    # -- a feed starts -------------------------------------------------------------------------------

    def _claim(self, tenures: Sequence[tuple[SimulatedFeed, int]]) -> None:
        for feed, epoch in tenures:
            owner = feed.owner
            if (
                feed.epoch != epoch
                or feed.state is not LeaseState.ASSIGNED
                or owner is None
                or not owner.is_up
            ):
                continue
            self.fleet.claim(feed)
            self._queue(feed)

    def _queue(self, feed: SimulatedFeed) -> None:
        """Get into line for the remote host, and behind that for the worker's own pace."""
        assert feed.owner is not None
        now_s = self.agenda.now / 1000
        feed.dial = feed.owner.dialler.join(feed, workers=self.fleet.active_workers, now=now_s)
        self._ask_soon(feed.owner, self.agenda.now)

    def _ask_soon(self, worker: SimulatedWorker, when: int) -> None:
        dialler = worker.dialler
        if dialler.asks_at is None or when < dialler.asks_at:
            dialler.asks_at = when
            self.agenda.at(when, partial(self._ask, worker, when))

    def _ask(self, worker: SimulatedWorker, when: int) -> None:
        """Let those dial whose turn it is."""
        dialler = worker.dialler
        if dialler.asks_at != when or not worker.is_up:
            return
        dialler.asks_at = None
        connecting: list[tuple[SimulatedFeed, int]] = []
        for dial in dialler.let_through(workers=self.fleet.active_workers, now=when / 1000):
            dial.feed.dial = None
            self.recorder.dialled(dial.feed.host, when)
            connecting.append((dial.feed, dial.epoch))
        if connecting:
            self.agenda.after(self.timing.connect_s, partial(self._connected, connecting))
        if (next_s := dialler.next_at()) is not None:
            self._ask_soon(worker, max(when + TURNS_MS, to_ms(next_s)))

    def _connected(self, tenures: Sequence[tuple[SimulatedFeed, int]]) -> None:
        for feed, epoch in tenures:
            if not self._runs(feed, epoch):
                continue
            if feed.host in self.away:
                self.fail(feed)
            else:
                feed.attempts = 0
                self.fleet.connect(feed, now=self.agenda.now)
                if self.fleet.is_moving(feed):
                    self.agenda.at(self._next_beat(feed.owner), partial(self._arrived, feed, epoch))

    def _next_beat(self, worker: SimulatedWorker | None) -> int:
        """When a worker sends its next heartbeat, and with it how its feeds fare."""
        assert worker is not None
        every = max(1, to_ms(self.settings.heartbeat_s))
        return self.agenda.now + (worker.beats_at - self.agenda.now) % every

    def _arrived(self, feed: SimulatedFeed, epoch: int) -> None:
        if self._runs(feed, epoch) and feed.connected:
            self.fleet.arrive(feed)
            self.wake()

    def fail(self, feed: SimulatedFeed) -> None:
        """The connection broke or was refused."""
        feed.attempts += 1
        self.fleet.disconnect(feed, now=self.agenda.now)
        decision = next_try(feed.attempts, rng=self.rng, policy=self.settings.backoff)
        if isinstance(decision, RetryElsewhere):
            self.fleet.let_go(feed, Move.RELEASE, Reason.BACKOFF)
            self.wait_until(feed, decision.delay_s)
        else:
            self.agenda.after(decision.delay_s, partial(self._dial_again, feed, feed.epoch))

    def _dial_again(self, feed: SimulatedFeed, epoch: int) -> None:
        if self._runs(feed, epoch):
            self._queue(feed)

    def _runs(self, feed: SimulatedFeed, epoch: int) -> bool:
        """Whether this tenure goes on."""
        owner = feed.owner
        return feed.epoch == epoch and feed.state is LeaseState.RUNNING and owner is not None and owner.is_up

    # -- a feed stops --------------------------------------------------------------------------------

    def let_go(self, feeds: Sequence[SimulatedFeed]) -> None:
        """Owners that were asked to let go of feeds do so."""
        tenures = []
        for feed in feeds:
            assert feed.owner is not None
            if feed.owner.is_up:  # others will be found gone
                self.cut(feed)
                tenures.append((feed, feed.epoch))
        self.agenda.after(self.timing.stop_s, partial(self._released, tenures))

    def cut(self, feed: SimulatedFeed) -> None:
        """It streams no more, and is in no line."""
        self.fleet.disconnect(feed, now=self.agenda.now)
        if feed.dial is not None:
            assert feed.owner is not None
            feed.owner.dialler.leave(feed.dial, now=self.agenda.now / 1000)
            feed.dial = None

    def _released(self, tenures: Sequence[tuple[SimulatedFeed, int]]) -> None:
        for feed, epoch in tenures:
            if feed.epoch != epoch or feed.state is not LeaseState.STOPPING:
                continue
            self.fleet.let_go(feed, Move.RELEASE, Reason.RELEASED)
            self.idle(feed)
        self.wake()

    def idle(self, feed: SimulatedFeed) -> None:
        if feed.removed:
            self.fleet.forget(feed, now=self.agenda.now)
        else:
            self.fleet.wait(feed)

    def wait_until(self, feed: SimulatedFeed, delay_s: float) -> None:
        if feed.removed:
            self.fleet.forget(feed, now=self.agenda.now)
            return
        self.agenda.after(delay_s, partial(self._due, feed, feed.epoch))

    def _due(self, feed: SimulatedFeed, epoch: int) -> None:
        # One that a successor got has another epoch by now, or is promised.
        if feed.epoch == epoch and feed.state is LeaseState.IDLE:
            self.fleet.end_hold(feed)
            self.fleet.wait(feed)
            self.wake()
