"""When the feeds of one worker dial: the real turns (`feedq.worker.connect_limiter`), by a simulated clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from feedq.worker.connect_limiter import ConnectTurns, Waiter

if TYPE_CHECKING:
    from feedq.simulate.simulated_fleet import SimulatedFeed


@dataclass(eq=False, slots=True)
class Dial(Waiter):
    """A feed in the line for its remote host."""

    feed: SimulatedFeed
    epoch: int


class Dialler:
    """The lines of one worker. Times in seconds."""

    __slots__ = ("_turns", "asks_at")

    def __init__(
        self,
        connects_per_s: float,
        host_connects_per_s: Mapping[str, float],
        *,
        failover_burst_s: float,
        rng: Random,
    ) -> None:
        self._turns: ConnectTurns[Dial] = ConnectTurns(
            connects_per_s, host_connects_per_s, failover_burst_s=failover_burst_s, rng=rng
        )
        self.asks_at: int | None = None
        """When, in milliseconds, somebody will ask again who may dial; None while nobody needs to."""

    def join(self, feed: SimulatedFeed, *, workers: int, now: float) -> Dial:
        dial = Dial(feed.host, feed, feed.epoch, after_loss=feed.after_loss)
        feed.after_loss = False
        self._turns.share(workers, now=now)
        self._turns.join(dial, now=now)
        return dial

    def leave(self, dial: Dial, *, now: float) -> None:
        """The tenure ended in the line."""
        if dial.is_waiting:
            self._turns.leave(dial, now=now)

    def let_through(self, *, workers: int, now: float) -> Iterator[Dial]:
        self._turns.share(workers, now=now)
        return self._turns.let_through(now)

    def next_at(self) -> float | None:
        """When to ask again."""
        upcoming = self._turns.next()
        return None if upcoming is None else upcoming[0]
