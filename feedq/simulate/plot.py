"""What the events of a scenario do to the fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from feedq.errors import InvalidInput
from feedq.model import LeaseState, WorkerTarget
from feedq.simulate.agenda import to_ms
from feedq.simulate.fleet_worker import FleetWorker
from feedq.simulate.happening import DEPLOY_PAUSE_S, DEPLOY_RESTART_S, Happening, Verb
from feedq.simulate.population import Population
from feedq.simulate.record import PhaseRecord

if TYPE_CHECKING:
    from feedq.simulate.event_queue import Engine


class Plot:
    """Makes things happen to an engine's fleet."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._agenda = engine.agenda
        self._store = engine.store
        self._recorder = engine.recorder
        self._rng = engine.rng
        self._population = Population(engine)

    def begin(self) -> None:
        """Starts all workers and declares all feeds."""
        scenario = self._engine.scenario
        self._open_phase("start")
        for group in scenario.feeds:
            self._population.declare(group, number=group.count)
        for workers in scenario.workers:
            self._population.start(workers, number=workers.count)

    def happen(self, event: Happening) -> None:
        self._close_phase()
        self._open_phase(event.text)
        match event.verb:
            case Verb.KILL:
                self._each(event, self._kill)
            case Verb.FREEZE:
                self._each(event, FleetWorker.freeze)
            case Verb.STOP:
                self._each(event, FleetWorker.stop)
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
                self._population.declare(self._engine.scenario.feeds[0], number=event.count)
            case Verb.REMOVE:
                self._remove(event.count)
            case Verb.AWAY:
                self._away(event.names)
            case Verb.BACK:
                self._engine.away.difference_update(event.names)
            case Verb.START:
                raise AssertionError("a fleet starts once")

    def finish(self) -> None:
        self._close_phase()
        self._recorder.finish(self._agenda.now)

    # -- phases --------------------------------------------------------------------------------------

    def _open_phase(self, text: str) -> None:
        before = sorted(feeds for feeds, _ in self._serving())
        self._recorder.phases.append(PhaseRecord(self._agenda.now, text, before))

    def _close_phase(self) -> None:
        phase, leases = self._recorder.phases[-1], self._store.database.tables.leases
        serving = self._serving()
        phase.after = sorted(feeds for feeds, _ in serving)
        phase.utilisation = sorted(feeds / capacity for feeds, capacity in serving)
        waiting = leases.in_state[LeaseState.IDLE] - leases.delayed
        phase.waiting = Counter(str(leases[feed_id].reason) for feed_id in waiting)

    def _serving(self) -> list[tuple[int, int]]:
        """Lists feeds and capacity of each worker that serves."""
        counted = self._store.database.tables.leases.counted
        sessions = (worker.worker for worker in self._engine.up() if self._serves(worker))
        return [(len(counted.get(w.id, ())), w.capacity) for w in sessions if w is not None]

    def _serves(self, worker: FleetWorker) -> bool:
        return worker.target is WorkerTarget.SERVING

    # -- workers -------------------------------------------------------------------------------------

    def _each(self, event: Happening, act: Callable[[FleetWorker], None]) -> None:
        for worker in self._meant(event):
            act(worker)

    def _meant(self, event: Happening) -> list[FleetWorker]:
        """Picks the workers that an event names, or so many of those that are up."""
        up = self._engine.up()
        if not event.names:
            serving = [worker for worker in up if self._serves(worker)]
            return self._rng.sample(serving, min(event.count, len(serving)))
        by_name = {worker.name: worker for worker in up}
        for name in event.names:
            if name not in by_name:
                there = ", ".join(list(by_name)[:5]) + (", …" if len(by_name) > 5 else "") or "none"
                raise InvalidInput(f"event {event.text!r}: no worker {name!r} is up then; up are: {there}")
        return [by_name[name] for name in event.names]

    def _kill(self, worker: FleetWorker) -> None:
        worker.kill()
        self._engine.look(self._agenda.now)

    def _join(self, event: Happening) -> None:
        group = self._engine.scenario.workers[0]
        if "capacity" in event.options:
            group = group.model_copy(update={"capacity": int(event.options["capacity"])})
        if not event.names:
            self._population.start(group, number=event.count)
        up = {worker.name for worker in self._engine.up()}
        for name in event.names:
            if name in up:
                raise InvalidInput(f"event {event.text!r}: {name!r} is up already")
            ended = self._engine.workers.get(name)
            if ended is None:
                self._engine.start(name, capacity=group.capacity, labels=group.labels)
            else:
                self._start_again(ended)

    def _start_again(self, ended: FleetWorker) -> None:
        self._engine.start(ended.name, capacity=ended.capacity, labels=ended.labels)

    def _deploy(self, event: Happening) -> None:
        """Restart all workers that are up, so many at a time, with a pause between."""
        restart_s = event.options.get("restart", DEPLOY_RESTART_S)
        pause_s = event.options.get("pause", DEPLOY_PAUSE_S)
        by = int(event.options.get("by", 1))
        names = [worker.name for worker in self._engine.up()]
        for turn, first in enumerate(range(0, len(names), by)):
            stop_s = turn * (restart_s + pause_s)
            together = names[first : first + by]
            self._agenda.after(stop_s, partial(self._restart, together, restart_s))

    def _restart(self, names: Sequence[str], restart_s: float) -> None:
        back_at = self._agenda.now + to_ms(restart_s)
        for worker in self._engine.up():
            if worker.name in names:
                # One that needs longer to let go of its feeds is back when it has.
                worker.on_left = lambda ended: self._agenda.at(back_at, partial(self._start_again, ended))
                worker.stop()

    def _want(self, target: WorkerTarget, worker: FleetWorker) -> None:
        worker.target = target
        if worker.worker is not None:
            self._store.workers.set_target(worker.worker.id, target)

    def _uncordon(self, event: Happening) -> None:
        marked = [worker for worker in self._engine.up() if not self._serves(worker)]
        for worker in self._meant(event) if event.names else marked[: event.count]:
            self._want(WorkerTarget.SERVING, worker)

    # -- feeds ---------------------------------------------------------------------------------------

    def _remove(self, number: int) -> None:
        there = [feed for feed in self._recorder.feeds.values() if not feed.removed]
        for feed in self._rng.sample(there, min(number, len(there))):
            self._recorder.feed_removed(feed)
            self._store.feeds.remove(self._population.name_of(feed.id))

    def _away(self, hosts: Sequence[str]) -> None:
        """Breaks the connections to a host, which accepts no new one."""
        self._engine.away.update(hosts)
        for worker in self._engine.workers.values():
            if worker.is_up:
                worker.hosts_went_away()
