"""A fleet under random faults: what may happen to it, drawn from a seed.

Workers run on the core that runs in production, on a control database, a source, a sink and a broker in memory.
A fault may come between any two steps of a worker, and a beat may die between any two statements. Every fifth
story is about runs of schedules: slots and tickers are those of production as well.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

from feedq.core.model import LeaseState, TargetState, WorkerState, WorkerTarget
from feedq.core.placement.base import Strategy
from feedq.errors import Conflict, InvalidInput, NotFound, Unavailable
from tests.fakes import FakeFleet
from tests.fakes.durations import DURATIONS
from tests.fakes.fleet_runs import FleetRuns

STEP_S = 0.25
FAULTS_S = 50.0
FAULT_CHANCE = 0.15
"""In each step."""
HEAL_S = 200.0
"""Longest of all that has to pass: the grace period, a dispatch time-out, and the sweep for a lost row."""
SETTLE_S = 20.0
"""Until the last newcomer has been given its part."""
NAMES = "abcde"
RUN_STORIES = 5
"""One story in so many is about runs of schedules, and all others about feeds."""


class Trouble:
    """Draws what happens next. Only what a seed decides: no clock, no order of sets."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self._broker_hangs_on = bool(seed % 2)
        """Whether the broker hangs on when all else is well again: messages are only hints."""
        # Announced restarts wait for the successor in half of the stories.
        drawn = {
            "restart_hold_s": self.rng.choice([0.0, 5.0]),
            "moves_per_pass": self.rng.choice([1, 100]),
            "placement": self.rng.choice(list(Strategy)),
        }
        settings = DURATIONS.model_copy(update=drawn)
        self.fleet = FakeFleet(step_s=STEP_S, rate_hz=2.0, settings=settings)
        about_runs = seed % RUN_STORIES == RUN_STORIES - 1
        # Few kinds of fault at a time find more than all of them at once, which hide one another.
        may_happen = [
            *self._faults_of_fleet,
            *(self._faults_of_runs if about_runs else self._faults_of_feeds),
        ]
        self._faults = self.rng.sample(may_happen, self.rng.randint(4, len(may_happen)))
        self._breaks_off: dict[str, float] = {}
        """When the network of which worker will break."""
        if about_runs:
            fleet, schedules = self.fleet, self.fleet.store.jobs.schedules
            fleet.runs = FleetRuns(fleet.control, schedules, self.rng, ttl_s=settings.ttl_s)
        else:
            self.fleet.add_feeds(8)
        for name in NAMES[:3]:
            self._add(name)

    def step(self) -> None:
        if self.rng.random() < FAULT_CHANCE:
            # A person may find the database away, too, and may ask for what cannot be.
            with suppress(Unavailable, Conflict, InvalidInput, NotFound):
                self.rng.choice(self._faults)()
        for name in [name for name, at in self._breaks_off.items() if self.fleet.clock.monotonic() >= at]:
            del self._breaks_off[name]
            if name in self.fleet.workers:
                self.fleet.cut_off(name)
        order = sorted(self.fleet.workers)
        self.rng.shuffle(order)
        self.fleet.step(order)

    def heal(self) -> None:
        """End every fault; what was killed stays dead, and somebody is there to take over."""
        self.fleet.database_comes_back()
        broker, sink = self.fleet.broker, self.fleet.sink
        broker.to_lose = broker.to_delay = sink.to_lose = sink.to_fail = 0
        broker.copies, sink.is_away = 1, False
        broker.hangs = self._broker_hangs_on
        broker.deliver_late(broker.late)
        # Those that are known stay as they are, among neighbours that must not suffer from it.
        known = {
            n for (n,) in self.fleet.control.observe("SELECT feed_id FROM feedq.lease WHERE quarantined")
        }
        self.fleet.source.poison &= known
        self.fleet.control.notifications_to_lose = 0
        self.fleet.control.notifications_take_s = 0.0
        self.fleet.control.answers_to_lose = 0
        self.fleet.control.commits_to_fail = 0
        self.fleet.has_beat, self.fleet.beat_interrupted_in = True, None
        for name, worker in self.fleet.workers.items():
            worker.thaw()
            worker.answers_take_s = 0.0
            worker.interrupted_in = None
            worker.claims_lost = 0
            worker.is_cut_off = False
            worker.is_stubborn = worker.is_deaf = False
            self.fleet.say(f"worker {name}", "is well again")
        for view in self.fleet.store.workers.views():
            if view.worker.target_state is not WorkerTarget.SERVING:
                self.fleet.store.workers.set_target(view.worker.id, WorkerTarget.SERVING)
        self._add("z", capacity=100)  # the others may all be about to leave
        for feed in [view.feed for view in self.fleet.store.feeds.views()]:
            if feed.spec.target_state is TargetState.PAUSED and feed.removed_at is None:
                self.fleet.resume(feed.id)

    # -- what may happen -----------------------------------------------------------------------------

    @property
    def _faults_of_fleet(self) -> list[Callable[[], None]]:
        return [
            self._kill,
            *[self._replace] * 2,
            *[self._freeze_or_thaw] * 3,
            *[self._cut_off_or_reconnect] * 2,
            self._slow_answers,
            *[self._break_off] * 2,
            *[self._database] * 2,
            self._restart_database,
            self._lose_answers,
            self._fail_commits,
            *[self._notifications] * 2,
            self._terminate,
            self._beat,
            *[self._interrupt] * 3,
            *[self._interrupt_beat] * 2,
            *[self._cordon_or_drain] * 2,
        ]

    @property
    def _faults_of_runs(self) -> list[Callable[[], None]]:
        return [self._trigger, self._trigger, self._backfill, self._cancel, self._cancel]

    @property
    def _faults_of_feeds(self) -> list[Callable[[], None]]:
        return [
            self._broker,
            self._broker_hangs_or_goes_on,
            self._old_message,
            *[self._edit] * 2,
            *[self._pause_or_resume] * 2,
            self._add_or_remove,
            self._delete_lease,
            self._lose_claims,
            self._sink_away,
            *[self._lose_commits] * 2,
            self._take_back_commits,
            self._poison,
            self._late_messages,
            *[self._move] * 2,
            self._be_stubborn,
            self._be_deaf_or_hear,
        ]

    def _add(self, name: str, *, capacity: int | None = None) -> None:
        drift = 1 + self.rng.uniform(-0.1, 0.1)
        capacity = self.rng.choice([3, 4, 5, 20]) if capacity is None else capacity
        self.fleet.add_worker(name, capacity=capacity, offset_s=self.rng.uniform(-1e6, 1e6), rate=drift)

    def _some_worker(self) -> str | None:
        names = sorted(self.fleet.workers)
        return self.rng.choice(names) if names else None

    def _kill(self) -> None:
        if (name := self._some_worker()) and len(self.fleet.workers) > 1:
            self.fleet.kill(name)

    def _terminate(self) -> None:
        if (name := self._some_worker()) and len(self.fleet.workers) > 1:
            self.fleet.terminate(name)

    def _replace(self) -> None:
        missing = [name for name in NAMES if name not in self.fleet.workers]
        if missing:
            self._add(missing[0])

    def _freeze_or_thaw(self) -> None:
        if name := self._some_worker():
            frozen = self.fleet.workers[name].is_frozen
            (self.fleet.thaw if frozen else self.fleet.freeze)(name)

    def _cut_off_or_reconnect(self) -> None:
        if name := self._some_worker():
            cut = self.fleet.workers[name].is_cut_off
            (self.fleet.reconnect if cut else self.fleet.cut_off)(name)

    def _slow_answers(self) -> None:
        if name := self._some_worker():
            self.fleet.workers[name].answers_take_s = self.rng.choice([0.0, 0.5, 4.0])

    def _break_off(self) -> None:
        """The network of a worker slows down, and then it breaks with an answer under way."""
        if name := self._some_worker():
            self.fleet.workers[name].answers_take_s = 4.0
            self._breaks_off[name] = self.fleet.clock.monotonic() + self.rng.uniform(2.0, 6.0)

    def _database(self) -> None:
        away = self.fleet.control.is_away
        (self.fleet.database_comes_back if away else self.fleet.database_goes_away)()

    def _restart_database(self) -> None:
        self.fleet.database_restarts()

    def _lose_answers(self) -> None:
        self.fleet.control.answers_to_lose = self.rng.randint(1, 3)

    def _fail_commits(self) -> None:
        self.fleet.control.commits_to_fail = self.rng.randint(1, 2)

    def _broker(self) -> None:
        self.fleet.broker.to_lose = self.rng.randint(0, 3)
        self.fleet.broker.copies = self.rng.randint(1, 3)

    def _broker_hangs_or_goes_on(self) -> None:
        broker = self.fleet.broker
        broker.hangs = not broker.hangs
        self.fleet.say("broker", "hangs" if broker.hangs else "hands out messages again")

    def _notifications(self) -> None:
        self.fleet.control.notifications_to_lose = self.rng.choice([0, 1, 3, 10])
        self.fleet.control.notifications_take_s = self.rng.choice([0.0, 0.5, 5.0])

    def _old_message(self) -> None:
        if self.fleet.broker.sent:
            self.fleet.broker.deliver(self.rng.choice(self.fleet.broker.sent))

    def _interrupt(self) -> None:
        """Crash or stand still between two of the next steps, wherever that is."""
        if (name := self._some_worker()) and len(self.fleet.workers) > 1:
            worker = self.fleet.workers[name]
            worker.interrupted_in, worker.dies_then = self.rng.randrange(12), self.rng.random() < 0.5

    def _interrupt_beat(self) -> None:
        """The beat dies between two of its next statements, wherever that is."""
        self.fleet.beat_interrupted_in = self.rng.randrange(12)

    def _trigger(self) -> None:
        self._ask(lambda runs: runs.trigger())

    def _backfill(self) -> None:
        self._ask(lambda runs: runs.backfill())

    def _cancel(self) -> None:
        self._ask(lambda runs: runs.cancel())

    def _ask(self, ask: Callable[[FleetRuns], str]) -> None:
        assert self.fleet.runs is not None
        self.fleet.say("person", ask(self.fleet.runs))

    def _lose_claims(self) -> None:
        if name := self._some_worker():
            self.fleet.workers[name].claims_lost = self.rng.randint(1, 2)

    def _sink_away(self) -> None:
        self.fleet.sink.is_away = not self.fleet.sink.is_away

    def _lose_commits(self) -> None:
        """The outcome of some commits is unknown."""
        self.fleet.sink.to_lose = self.rng.randint(0, 2)
        self.fleet.sink.to_fail = self.rng.randint(0, 2)

    def _take_back_commits(self) -> None:
        taken = self.rng.randint(1, 10)
        self.fleet.say("sink", f"loses its last {taken} changes")
        self.fleet.sink.take_back(taken)

    def _poison(self) -> None:
        """One feed ends the process that reads it, for a while."""
        poison = self.fleet.source.poison
        if poison and self.rng.random() < 0.5:
            poison.clear()
        elif feed_id := self._feed():
            self.fleet.say("source", f"poisons feed {feed_id}")
            poison.add(feed_id)

    def _late_messages(self) -> None:
        broker = self.fleet.broker
        self.rng.shuffle(broker.late)
        broker.deliver_late(broker.late)
        broker.to_delay = self.rng.randint(0, 4)

    def _move(self) -> None:
        feed_id, name = self._feed(), self._some_worker()
        if feed_id and name:
            self.fleet.move(feed_id, name)

    def _cordon_or_drain(self) -> None:
        if name := self._some_worker():
            self.rng.choice([self.fleet.cordon, self.fleet.drain, self.fleet.uncordon])(name)

    def _be_stubborn(self) -> None:
        if name := self._some_worker():
            self.fleet.become_stubborn(name)

    def _be_deaf_or_hear(self) -> None:
        if name := self._some_worker():
            if self.fleet.workers[name].is_deaf:
                self.fleet.workers[name].is_deaf = False
            else:
                self.fleet.become_deaf(name)

    def _feed(self) -> int | None:
        alive = [feed_id for (feed_id,) in self.fleet.control.observe("EXECUTE alive")]
        return self.rng.choice(alive) if alive else None

    def _edit(self) -> None:
        if feed_id := self._feed():
            self.fleet.edit(feed_id)

    def _pause_or_resume(self) -> None:
        if feed_id := self._feed():
            paused = self.fleet.target(feed_id) is TargetState.PAUSED
            (self.fleet.resume if paused else self.fleet.pause)(feed_id)

    def _add_or_remove(self) -> None:
        feed_id = self._feed()
        if feed_id and self.rng.random() < 0.5:
            self.fleet.remove(feed_id)
        else:
            self.fleet.add_feeds(1)

    def _delete_lease(self) -> None:
        feed_id = self._feed()
        if feed_id and feed_id in {lease.feed_id for lease in self.fleet.control.leases()}:
            self.fleet.delete_lease(feed_id)

    def _beat(self) -> None:
        self.fleet.has_beat = not self.fleet.has_beat


def run_seed(seed: int, *, faults_s: float = FAULTS_S) -> FakeFleet:
    """Faults for so long, then none: every feed must stream, every record land, and the fleet come to rest.

    Raises `InvariantBroken`, with the transcript.
    """
    trouble = Trouble(seed)
    fleet = trouble.fleet
    if fleet.runs is not None:
        faults_s /= 2  # workers look for runs all the time, which costs as much as the rest
    for _ in range(round(faults_s / STEP_S)):
        trouble.step()
    trouble.heal()
    if fleet.runs is not None:
        fleet.run(SETTLE_S / 2)
        fleet.runs.pause_all()
        fleet.run_until(fleet.runs.all_have_ended, limit_s=HEAL_S)
        return fleet
    fleet.run_until(fleet.everything_streams, limit_s=HEAL_S)
    fleet.run(SETTLE_S)
    asked = fleet.transcript.count(" to stop feed")
    fleet.run(SETTLE_S)
    # A feed in quarantine that is tried again now and then changes what is even.
    if not fleet.source.poison and fleet.transcript.count(" to stop feed") != asked:
        raise fleet.broken("it never comes to rest")
    if not fleet.everything_streams():
        raise fleet.broken("not everything streams")
    feeds = fleet.store.feeds.views()
    if {c.feed_id for c in fleet.source.connections} - {view.feed.id for view in feeds}:
        raise fleet.broken("a feed that was removed is still read")
    if any(
        x.lease.state is LeaseState.RUNNING and x.lease.generation < x.feed.stream_generation for x in feeds
    ):
        raise fleet.broken("an edit was forgotten")
    views = fleet.store.workers.views(gone=True)
    active = {view.worker.id for view in views if view.worker.state is WorkerState.ACTIVE}
    owners = {view.lease.worker_id for view in feeds} - {None}
    if owners - active:
        raise fleet.broken("a feed belongs to a worker that is gone")
    return fleet
