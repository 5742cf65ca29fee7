"""A fleet that is being killed: workers that end at commits and anywhere else, that freeze and wake, and that lose
half of their notifications.

Everything that is drawn comes from one seed. What the machine makes of it differs from run to run; the kind of
fault, its moment in terms of commits, and the order do not.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import psutil

from tests.chaos.boundaries import BOUNDARIES, SAID
from tests.cluster import Cluster
from tests.node import Node

IMPORTED = "tests.chaos.effects,tests.chaos.boundaries"
TTL_S = 2.5
SETTINGS = {
    "FEEDQ_TTL_S": str(TTL_S),
    "FEEDQ_HEARTBEAT_S": "0.5",
}
LOOK_S = 0.05
LONGER_S = 120.0
KILL_EVERY_S = 3.0
FREEZE_EVERY_S = 5.0
FROZEN_S = (0.5 * TTL_S, 2.5 * TTL_S)
BEAT_EVERY_S = 12.0
YOUNG_S = 1.0
"""A worker this young is not killed from outside: it has done nothing yet."""
DOOMED = 0.9
"""So many of all workers choose their end themselves."""
STOPS = 0.15
"""So many of those only freeze."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A commit, and which side of it."""

    boundary: str
    side: str

    def __str__(self) -> str:
        return f"{self.side} {self.boundary}"


MOMENTS = [Moment(boundary, side) for boundary in BOUNDARIES for side in ("before", "after")]


@dataclass
class Losses:
    """What a storm did, by where it did it."""

    kills: Counter[str] = field(default_factory=Counter)
    freezes: Counter[str] = field(default_factory=Counter)
    beats: int = 0

    @property
    def missed(self) -> set[str]:
        """Commits at which no worker has ended yet."""
        return {str(moment) for moment in MOMENTS} - self.kills.keys()

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {where}" for where, count in sorted(self.kills.items()))
        return (
            f"{self.kills.total()} workers killed ({kills}), {self.freezes.total()} frozen, "
            f"{self.beats} beats killed"
        )


class Storm:
    """Blows on the workers and beats of one cluster."""

    def __init__(self, cluster: Cluster, rng: Random, *, workers: int) -> None:
        self.cluster, self.losses = cluster, Losses()
        self._rng = rng
        self._names = [f"w{n}" for n in range(workers)]
        self._dooms: dict[str, Moment] = {}
        self._born: dict[str, float] = {}
        self._read: dict[str, int] = {}
        self._thaw_at: dict[str, float] = {}

    def gather(self) -> None:
        """Start all workers, whole ones."""
        for name in self._names:
            self._start(name, doom="")
        for name in self._names:
            self.cluster.wait_worker(name)

    def blow(self, seconds: float, *, until: Callable[[Losses], bool]) -> None:
        """For so long; and then until it has done enough, but not for ever."""
        now = time.monotonic()
        end = now + seconds
        due = {
            self._kill: now + KILL_EVERY_S,
            self._freeze: now + FREEZE_EVERY_S,
            self._kill_beat: now + BEAT_EVERY_S,
        }
        every = {
            self._kill: KILL_EVERY_S,
            self._freeze: FREEZE_EVERY_S,
            self._kill_beat: BEAT_EVERY_S,
        }
        while (now := time.monotonic()) < end or (not until(self.losses) and now < end + LONGER_S):
            self._tend(doomed=True)
            for act, at in due.items():
                if now >= at:
                    act()
                    due[act] = now + every[act] * self._rng.uniform(0.5, 1.5)
            time.sleep(LOOK_S)

    def calm(self) -> None:
        """Wake what is frozen and start what is dead; whoever has a doom yet may still meet it. To be called until
        all is quiet."""
        self._tend(doomed=False)

    def _tend(self, *, doomed: bool) -> None:
        now = time.monotonic()
        for name in self._names:
            node = self.cluster.workers[name]
            if not node.is_running():
                self._thaw_at.pop(name, None)
                self._count(node)
                self._start(name, doom=self._doom(name) if doomed else "")
            elif name in self._thaw_at:
                if now >= self._thaw_at[name] or not doomed:
                    del self._thaw_at[name]
                    node.thaw()
            elif is_stopped(node):
                # By itself.
                self._count(node)
                self._thaw_at[name] = now + self._rng.uniform(*FROZEN_S)
        for name, beat in list(self.cluster.beats.items()):
            if not beat.is_running():
                self.cluster.add_beat(name)

    def _doom(self, name: str) -> str:
        """At a commit where few have ended, and few others are about to: at its first time or a few times later.
        What only one worker of all does at a moment, fire and expire, is not waited for a second time."""
        self._dooms.pop(name, None)
        if self._rng.random() >= DOOMED:
            return ""
        counts = self.losses.kills + Counter(str(moment) for moment in self._dooms.values())
        moments = sorted(MOMENTS, key=lambda moment: (counts[str(moment)], self._rng.random()))
        moment = self._dooms[name] = moments[0]
        action = "stop" if self._rng.random() < STOPS else "kill"
        count = 1 if moment.boundary in ("fire_due", "expire") else self._rng.randint(1, 5)
        return f"{moment.boundary}:{moment.side}:{action}:{count}"

    def _start(self, name: str, *, doom: str) -> None:
        env = {"FEEDQ_TEST_DOOM": doom, "FEEDQ_TEST_LOST": str(self._rng.random())}
        self.cluster.add_worker(name, capacity=10, env=env, ready=False)
        self._born[name] = time.monotonic()

    def _count(self, node: Node) -> None:
        """What it said on meeting its doom."""
        text = node.text()[self._read.get(node.name, 0) :]
        self._read[node.name] = self._read.get(node.name, 0) + len(text)
        for line in text.splitlines():
            if line.startswith(SAID):
                boundary, side, action = line.removeprefix(SAID).split()
                (self.losses.kills if action == "kill" else self.losses.freezes)[f"{side} {boundary}"] += 1

    def _victim(self) -> Node | None:
        now = time.monotonic()
        found = [
            self.cluster.workers[name]
            for name in self._names
            if self.cluster.workers[name].is_running()
            and name not in self._thaw_at
            and now - self._born[name] > YOUNG_S
        ]
        return self._rng.choice(found) if found else None

    def _kill(self) -> None:
        if (victim := self._victim()) is not None:
            victim.signal(signal.SIGKILL)
            victim.wait(10)
            self.losses.kills["anywhere"] += 1

    def _freeze(self) -> None:
        if (victim := self._victim()) is not None:
            victim.freeze()
            self._thaw_at[victim.name] = time.monotonic() + self._rng.uniform(*FROZEN_S)
            self.losses.freezes["anywhere"] += 1

    def _kill_beat(self) -> None:
        beats = [beat for beat in self.cluster.beats.values() if beat.is_running()]
        if len(beats) > 1:
            victim = self._rng.choice(beats)
            victim.signal(signal.SIGKILL)
            victim.wait(10)
            self.losses.beats += 1


def is_stopped(node: Node) -> bool:
    try:
        return bool(psutil.Process(node.pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False
