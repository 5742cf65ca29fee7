"""Source, sink and broker without a server: just enough of each to show what the lease protocol is for.

The source numbers its records and knows who is connected. The sink lands rows and checkpoint together, gated
by the epoch. The broker loses, repeats and delays messages when told to.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor

from feedq.clock import Clock
from feedq.model import Assignment, FeedKey


class FakeConnection:
    """A worker's socket to the source of one feed."""

    def __init__(self, source: FakeSource, feed_id: int, owner: str, cursor: int) -> None:
        self._source = source
        self.feed_id = feed_id
        self.owner = owner
        self._cursor = cursor

    def read(self) -> range:
        """The records that came in since the last read."""
        if self not in self._source.connections:
            return range(0)
        first, self._cursor = self._cursor + 1, max(self._cursor, self._source.sent(self.feed_id))
        return range(first, self._cursor + 1)

    def close(self) -> None:
        self._source.connections.discard(self)


class FakeSource:
    """Every feed's source: record 1, 2, 3, … at a steady rate; whoever connects says what it has already."""

    def __init__(self, clock: Clock, *, rate_hz: float) -> None:
        self._clock = clock
        self._rate_hz = rate_hz
        self._began = clock.monotonic()
        self.connections: set[FakeConnection] = set()

    def sent(self, feed_id: int) -> int:
        """The newest record of the feed."""
        return floor((self._clock.monotonic() - self._began) * self._rate_hz)

    def connect(self, feed_id: int, owner: str, *, cursor: int) -> FakeConnection:
        connection = FakeConnection(self, feed_id, owner, cursor)
        self.connections.add(connection)
        return connection

    def owners(self, feed_id: int) -> list[str]:
        """Who is connected to the feed."""
        return sorted(c.owner for c in self.connections if c.feed_id == feed_id)


@dataclass(frozen=True, slots=True)
class FakeCheckpoint:
    """Where a feed stands in the sink."""

    epoch: int
    cursor: int


class FakeSink:
    """Rows and checkpoints, each write one transaction."""

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {}
        self.checkpoints: dict[int, FakeCheckpoint] = {}

    def fence(self, key: FeedKey) -> int | None:
        """Raise the feed's epoch and return the predecessor's cursor; None: the sink has seen a newer one."""
        feed_id, epoch = key
        seen = self.checkpoints.get(feed_id, FakeCheckpoint(0, 0))
        if seen.epoch >= epoch:
            return None
        self.checkpoints[feed_id] = FakeCheckpoint(epoch, seen.cursor)
        return seen.cursor

    def epoch(self, feed_id: int) -> int:
        return self.checkpoints[feed_id].epoch

    def cursor(self, key: FeedKey) -> int | None:
        """Where the tenure stands; None: it is over."""
        seen = self.checkpoints.get(key[0])
        return seen.cursor if seen is not None and self._admits(seen, key[1]) else None

    def write(self, key: FeedKey, records: Sequence[int]) -> bool:
        """Land records and checkpoint together. False: the epoch has passed, nothing was written."""
        seen = self.checkpoints[key[0]]
        if not self._admits(seen, key[1]):
            return False
        self.rows.setdefault(key[0], []).extend(records)
        self.checkpoints[key[0]] = FakeCheckpoint(seen.epoch, records[-1])
        return True

    def _admits(self, seen: FakeCheckpoint, epoch: int) -> bool:
        return seen.epoch == epoch


class FakeBroker:
    """One queue a worker session. Messages are hints: it may lose and repeat them."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[FeedKey]] = {}
        self.sent: list[Assignment] = []
        """Every message ever sent, so that an old one can be delivered again."""
        self.to_lose = 0
        self.copies = 1

    def send(self, messages: Iterable[Assignment]) -> None:
        for message in messages:
            self.sent.append(message)
            if self.to_lose:
                self.to_lose -= 1
            else:
                self.deliver(message, times=self.copies)

    def deliver(self, message: Assignment, *, times: int = 1) -> None:
        """Put it into its worker's queue, however old it is."""
        self._queues.setdefault(message.queue, deque()).extend([message.key] * times)

    def take(self, queue: str) -> list[FeedKey]:
        waiting = self._queues.pop(queue, deque())
        return list(waiting)

    def backlog(self) -> Counter[str]:
        return Counter({queue: len(waiting) for queue, waiting in self._queues.items()})
