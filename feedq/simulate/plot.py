"""What the events of a scenario do to the fleet, and when the control plane comes to know of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from feedq.errors import InvalidInput
from feedq.lease import SECOND_CHECK_S, Move
from feedq.model import LeaseState, Reason, WorkerTarget
from feedq.simulate.agenda import to_ms
from feedq.simulate.happening import DEPLOY_PAUSE_S, DEPLOY_RESTART_S, Happening, Verb
from feedq.simulate.population import Population, spread
from feedq.simulate.record import PhaseRecord
from feedq.simulate.simulated_fleet import SimulatedFeed, SimulatedWorker

if TYPE_CHECKING:
    from feedq.simulate.event_queue import Engine


class Plot:
    """Makes things happen to an engine's fleet."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._agenda = engine.agenda
        self._fleet = engine.fleet
        self._recorder = engine.recorder
        self._rng = engine.rng
        self._population = Population(engine.settings, engine.rng)
        self._ended: dict[str, SimulatedWorker] = {}
        """The last session of each worker that is down, by name."""

    def begin(self) -> None:
        """All workers start, and all feeds are declared."""
        scenario = self._engine.scenario
        self._open_phase("start")
        for group in scenario.feeds:
            self._declare(self._population.feeds(group, number=group.count, now=0, phase=0))
        for workers in scenario.workers:
            for worker in self._population.workers(workers, number=workers.count, now=0):
                self._register(worker)

    def happen(self, event: Happening) -> None:
        self._close_phase()
        self._open_phase(event.text)
        match event.verb:
            case Verb.KILL:
                self._each(event, self._kill)
            case Verb.FREEZE:
                self._each(event, self._freeze)
            case Verb.STOP:
                self._each(event, self._stop)
            case Verb.JOIN:
                self._join(event)
            case Verb.DEPLOY:
                self._deploy(event)
            case Verb.DRAIN:
                self._each(event, partial(self._want, WorkerTarget.DRAINED))
            case Verb.CORDON:
                self._each(event, partial(self._want, WorkerTarget.CORDONED))
            case Verb.UNCORDON:
                self._uncordon(event)
            case Verb.ADD:
                self._add(event.count)
            case Verb.REMOVE:
                self._remove(event.count)
            case Verb.AWAY:
                self._away(event.names)
            case Verb.BACK:
                self._engine.away.difference_update(event.names)
            case Verb.START:
                raise AssertionError("a fleet starts once")

    def finish(self) -> None:
        """Whoever does not stream at the end has a gap that lasts until then at least."""
        self._close_phase()
        now = self._agenda.now
        for feed in self._fleet.feeds:
            if not feed.connected and not feed.removed:
                self._recorder.phases[feed.down_phase].gaps_ms.append(now - feed.down_since)

    # -- phases --------------------------------------------------------------------------------------

    def _open_phase(self, text: str) -> None:
        before = spread(list(self._fleet.sessions.values()))
        self._recorder.phases.append(PhaseRecord(self._agenda.now, text, before))

    def _close_phase(self) -> None:
        phase = self._recorder.phases[-1]
        serving = [w for w in self._fleet.sessions.values() if w.serves and w.is_up]
        phase.after = spread(serving)
        phase.utilisation = sorted(w.feeds / w.capacity for w in serving)
        phase.waiting = Counter(str(feed.reason) for feed in self._fleet.waiting.values())

    # -- workers -------------------------------------------------------------------------------------

    def _each(self, event: Happening, act: Callable[[SimulatedWorker], None]) -> None:
        for worker in self._meant(event):
            act(worker)

    def _meant(self, event: Happening) -> list[SimulatedWorker]:
        """The workers that an event names, or so many of those that are up."""
        up = self._fleet.up()
        if not event.names:
            serving = [w for w in up if w.serves]
            return self._rng.sample(serving, min(event.count, len(serving)))
        by_name = {w.name: w for w in up}
        for name in event.names:
            if name not in by_name:
                there = ", ".join(list(by_name)[:5]) + (", …" if len(by_name) > 5 else "") or "none"
                raise InvalidInput(f"event {event.text!r}: no worker {name!r} is up then; up are: {there}")
        return [by_name[name] for name in event.names]

    def _register(self, worker: SimulatedWorker) -> None:
        self._ended.pop(worker.name, None)
        self._fleet.register(worker)
        self._engine.wake()
        # From then on it may be moved something, which the next tick will see.
        self._agenda.after(self._engine.settings.settle_s, self._fleet.note_change)

    def _kill(self, worker: SimulatedWorker) -> None:
        """Its sessions end with it: the beat sees that in its next look, and once more in the second."""
        self._go_down(worker)
        look = self._next_look(self._agenda.now) + to_ms(SECOND_CHECK_S)
        self._agenda.at(look, partial(self._bury, worker))

    def _freeze(self, worker: SimulatedWorker) -> None:
        """Its sessions stay: only its silence tells, once its last heartbeat has expired."""
        self._go_down(worker)
        settings = self._engine.settings
        interval = max(1, to_ms(settings.heartbeat_s))
        last = self._agenda.now - (self._agenda.now - worker.beats_at) % interval
        expires = max(worker.started_at, last) + to_ms(settings.ttl_s)
        self._agenda.at(self._next_look(expires), partial(self._bury, worker))

    def _go_down(self, worker: SimulatedWorker) -> None:
        worker.is_up = False
        self._ended[worker.name] = worker
        for feed in worker.leases.values():
            self._engine.cut(feed)

    def _next_look(self, at: int) -> int:
        interval = max(1, to_ms(self._engine.settings.look_interval_s))
        return at + (self._engine.looks_at - at) % interval

    def _bury(self, worker: SimulatedWorker) -> None:
        self._fleet.end(worker)
        for feed in list(worker.leases.values()):
            self._fleet.let_go(feed, Move.LOSE_WORKER, Reason.WORKER_GONE)
            self._engine.idle(feed)
        self._engine.wake()

    def _stop(self, worker: SimulatedWorker) -> None:
        """SIGTERM: it lets go of everything at once, and says so."""
        self._fleet.drain(worker)
        leases = [(feed, feed.epoch) for feed in worker.leases.values()]
        self._go_down(worker)
        self._agenda.after(self._engine.timing.stop_s, partial(self._stopped, worker, leases))

    def _stopped(self, worker: SimulatedWorker, leases: Sequence[tuple[SimulatedFeed, int]]) -> None:
        hold_s = self._engine.settings.restart_hold_s
        self._fleet.end(worker)
        for feed, epoch in leases:
            if feed.epoch != epoch or feed.owner is not worker:
                continue  # it was on its way elsewhere, and was let go of meanwhile
            is_promised = feed.promised_to is not None
            self._fleet.let_go(feed, Move.LOSE_WORKER, Reason.RELEASED)
            if hold_s and not is_promised and not feed.removed:
                self._fleet.hold(feed, worker.name)
                self._engine.wait_until(feed, hold_s)
            else:
                self._engine.idle(feed)
        self._engine.wake()

    def _join(self, event: Happening) -> None:
        now = self._agenda.now
        group = self._engine.scenario.workers[0]
        if "capacity" in event.options:
            group = group.model_copy(update={"capacity": int(event.options["capacity"])})
        if not event.names:
            for worker in self._population.workers(group, number=event.count, now=now):
                self._register(worker)
        up = {worker.name for worker in self._fleet.up()}
        for name in event.names:
            if name in up:
                raise InvalidInput(f"event {event.text!r}: {name!r} is up already")
            ended = self._ended.get(name)
            if ended is None:
                self._register(self._population.worker(name, group.capacity, group.labels, now=now))
            else:
                self._register(self._population.successor(ended, now=now))

    def _deploy(self, event: Happening) -> None:
        """Restart all workers that are up, so many at a time, with a pause between."""
        restart_s = event.options.get("restart", DEPLOY_RESTART_S)
        pause_s = event.options.get("pause", DEPLOY_PAUSE_S)
        by = int(event.options.get("by", 1))
        names = [worker.name for worker in self._fleet.up()]
        for turn, first in enumerate(range(0, len(names), by)):
            stop_s = turn * (restart_s + pause_s)
            together = names[first : first + by]
            self._agenda.after(stop_s, partial(self._restart, together, restart_s))

    def _restart(self, names: Sequence[str], restart_s: float) -> None:
        chosen = [worker for worker in self._fleet.up() if worker.name in names]
        for worker in chosen:
            self._stop(worker)
        self._agenda.after(restart_s, partial(self._come_back, chosen))

    def _come_back(self, ended: Sequence[SimulatedWorker]) -> None:
        for worker in ended:
            self._register(self._population.successor(worker, now=self._agenda.now))

    def _want(self, target: WorkerTarget, worker: SimulatedWorker) -> None:
        worker.target = target
        self._fleet.note_change()
        self._engine.wake()

    def _uncordon(self, event: Happening) -> None:
        marked = [w for w in self._fleet.up() if not w.serves]
        for worker in self._meant(event) if event.names else marked[: event.count]:
            self._want(WorkerTarget.SERVING, worker)

    # -- feeds ---------------------------------------------------------------------------------------

    def _declare(self, feeds: Sequence[SimulatedFeed]) -> None:
        self._fleet.declare(feeds)
        self._engine.wake()

    def _add(self, number: int) -> None:
        group = self._engine.scenario.feeds[0]
        phase = len(self._recorder.phases) - 1
        self._declare(self._population.feeds(group, number=number, now=self._agenda.now, phase=phase))

    def _remove(self, number: int) -> None:
        there = [feed for feed in self._fleet.feeds if not feed.removed]
        stopping: list[SimulatedFeed] = []
        for feed in self._rng.sample(there, min(number, len(there))):
            feed.removed = True
            match feed.state:
                case LeaseState.IDLE:
                    self._fleet.forget(feed, now=self._agenda.now)
                case LeaseState.ASSIGNED:
                    self._fleet.let_go(feed, Move.WITHDRAW, Reason.REMOVED)
                    self._fleet.forget(feed, now=self._agenda.now)
                case LeaseState.RUNNING:
                    self._fleet.ask_to_stop(feed)
                    stopping.append(feed)
        self._engine.let_go(stopping)

    def _away(self, hosts: Sequence[str]) -> None:
        """Connections break, and no new one is accepted."""
        self._engine.away.update(hosts)
        for feed in self._fleet.feeds:
            if feed.connected and feed.host in self._engine.away:
                self._engine.fail(feed)
