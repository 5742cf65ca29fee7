"""A fleet on paper under random faults, seed by seed.

After every step the invariants of `FakeFleet.check` hold. At the end everything that was broken is mended,
and then every feed must stream and every record must land. A failure prints its seed and its transcript;
``FEEDQ_SIM_SEED=<seed>`` replays that one alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from feedq.errors import Conflict, InvalidInput, NotFound, Unavailable
from feedq.model import TargetState, WorkerState, WorkerTarget
from tests.fakes import FakeFleet
from tests.fakes.durations import DURATIONS

STEPS = 400
STEP_S = 0.25
FAULT_CHANCE = 0.15
SEEDS = range(20)
HEAL_S = 200.0
"""Longest of all that has to pass: the quiet period, a dispatch time-out, and the sweep for a lost row."""
SETTLE_S = 40.0
"""Until the last newcomer has been given its part."""
NAMES = "abcde"


def seeds() -> list[int]:
    replayed = os.environ.get("FEEDQ_SIM_SEED")
    return [int(replayed)] if replayed else list(SEEDS)


class Trouble:
    """Draws what happens next. Only what a seed decides: no clock, no order of sets."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        # Announced restarts wait for the successor in half of the stories.
        settings = DURATIONS.model_copy(update={"restart_hold_s": self.rng.choice([0.0, 5.0])})
        self.fleet = FakeFleet(step_s=STEP_S, rate_hz=2.0, settings=settings)
        self.fleet.add_feeds(8)
        for name in NAMES[:3]:
            self._add(name)

    def step(self) -> None:
        if self.rng.random() < FAULT_CHANCE:
            # A person may find the database away, too, and may ask for what cannot be.
            with suppress(Unavailable, Conflict, InvalidInput, NotFound):
                self.rng.choice(self._faults)()
        order = sorted(self.fleet.workers)
        self.rng.shuffle(order)
        self.fleet.step(order)

    def heal(self) -> None:
        """End every fault; what was killed stays dead, and somebody is there to take over."""
        self.fleet.database_comes_back()
        self.fleet.broker.to_lose, self.fleet.broker.copies = 0, 1
        self.fleet.store.lose_rings(0)
        self.fleet.store.delay_rings(0.0)
        self.fleet.store.lose_answers(0)
        self.fleet.store.fail_commits(0)
        self.fleet.has_beat = True
        for name, worker in self.fleet.workers.items():
            worker.thaw()
            worker.answers_take_s = 0.0
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
    def _faults(self) -> list[Callable[[], None]]:
        return [
            self._kill,
            self._replace,
            self._replace,
            self._freeze_or_thaw,
            self._freeze_or_thaw,
            self._freeze_or_thaw,
            self._cut_off_or_reconnect,
            self._cut_off_or_reconnect,
            self._slow_answers,
            self._database,
            self._database,
            self._restart_database,
            self._lose_answers,
            self._fail_commits,
            self._broker,
            self._rings,
            self._rings,
            self._old_message,
            self._edit,
            self._edit,
            self._pause_or_resume,
            self._pause_or_resume,
            self._add_or_remove,
            self._delete_lease,
            self._terminate,
            self._beat,
            self._move,
            self._move,
            self._cordon_or_drain,
            self._cordon_or_drain,
            self._be_stubborn,
            self._be_deaf_or_hear,
        ]

    def _add(self, name: str, *, capacity: int | None = None) -> None:
        drift = 1 + self.rng.uniform(-0.02, 0.02)
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

    def _database(self) -> None:
        away = self.fleet.store.database.away
        (self.fleet.database_comes_back if away else self.fleet.database_goes_away)()

    def _restart_database(self) -> None:
        self.fleet.database_restarts()

    def _lose_answers(self) -> None:
        self.fleet.store.lose_answers(self.rng.randint(1, 3))

    def _fail_commits(self) -> None:
        self.fleet.store.fail_commits(self.rng.randint(1, 2))

    def _broker(self) -> None:
        self.fleet.broker.to_lose = self.rng.randint(0, 3)
        self.fleet.broker.copies = self.rng.randint(1, 3)

    def _rings(self) -> None:
        self.fleet.store.lose_rings(self.rng.choice([0, 1, 3, 10]))
        self.fleet.store.delay_rings(self.rng.choice([0.0, 0.5, 5.0]))

    def _old_message(self) -> None:
        if self.fleet.broker.sent:
            self.fleet.broker.deliver(self.rng.choice(self.fleet.broker.sent))

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
        alive = [v.feed.id for v in self.fleet.store.feeds.views() if v.feed.removed_at is None]
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
        if feed_id and feed_id in self.fleet.store.database.tables.leases:
            self.fleet.delete_lease(feed_id)

    def _beat(self) -> None:
        self.fleet.has_beat = not self.fleet.has_beat


@pytest.mark.parametrize("seed", seeds())
def test_no_fault_loses_or_doubles_a_record_and_everything_heals(seed: int) -> None:
    print(f"replay with FEEDQ_SIM_SEED={seed}")
    trouble = Trouble(seed)
    for _ in range(STEPS):
        trouble.step()
    trouble.heal()
    trouble.fleet.run_until(trouble.fleet.everything_streams, limit_s=HEAL_S)
    trouble.fleet.run(SETTLE_S)
    asked = trouble.fleet.transcript.count(" to stop feed")
    trouble.fleet.run(SETTLE_S)
    assert trouble.fleet.transcript.count(" to stop feed") == asked, "it never comes to rest"
    assert trouble.fleet.everything_streams()
    gone = {v.worker.id for v in trouble.fleet.store.workers.views(gone=True)} - {
        v.worker.id for v in trouble.fleet.store.workers.views() if v.worker.state is WorkerState.ACTIVE
    }
    assert not gone & {v.lease.worker_id for v in trouble.fleet.store.feeds.views()}


def test_a_seed_is_the_same_story_every_time() -> None:
    def story() -> str:
        trouble = Trouble(7)
        for _ in range(100):
            trouble.step()
        return trouble.fleet.transcript

    assert story() == story()
