"""Source, sink and broker without a server: just enough of each to show what the lease protocol is for.

The source numbers its records and knows who is connected. The sink lands rows and checkpoint together, gated
by the epoch. The broker loses, repeats and delays messages when told to, or hangs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import floor
from uuid import UUID

from feedq.core.clock import Clock
from feedq.core.model import Assignment, FeedKey
from feedq.errors import SinkUnavailable


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
        self.poison: set[int] = set()
        """Feeds whose records end the process that reads them."""
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


class FakeCommitUnknown(Exception):
    """The connection broke before the answer to a commit came: it may have landed or not."""

    def __init__(self, commit: int) -> None:
        super().__init__(commit)
        self.commit = commit


@dataclass(frozen=True, slots=True)
class FakeCheckpoint:
    """Where a feed stands in the sink, and who left it so by which commit."""

    epoch: int = 0
    cursor: int = 0
    owner: UUID | None = None
    commit: int = 0


class FakeSink:
    """Rows and checkpoints, each write one transaction; by the rules of `feedq.sinks.statements`."""

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {}
        self.checkpoints: dict[int, FakeCheckpoint] = {}
        self.is_away = False
        self.to_lose = self.to_fail = 0
        """Commits to come whose answer is lost, after they have landed and before."""
        self._commits = 0
        self._history: list[tuple[int, int, FakeCheckpoint]] = []
        """Of each change, the feed, how many rows it had before, and its checkpoint before."""

    def fence(self, key: FeedKey, owner: UUID) -> FakeCheckpoint | None:
        """Raise the feed's epoch and return where it stands; None: the sink has seen a newer owner."""
        self._require()
        feed_id, epoch = key
        seen = self.checkpoint(feed_id)
        if seen.epoch > epoch or (seen.epoch == epoch and seen.owner != owner):
            return None
        return self._leave(feed_id, FakeCheckpoint(epoch, seen.cursor, owner, self._next_commit()))

    def checkpoint(self, feed_id: int) -> FakeCheckpoint:
        return self.checkpoints.get(feed_id, FakeCheckpoint())

    def write(self, key: FeedKey, continues: int, records: Sequence[int]) -> int | None:
        """Land records and checkpoint together; the number of the commit, or None: the checkpoint is lost."""
        self._require()
        seen = self.checkpoint(key[0])
        if not self.is_as_left(seen, key[1], continues):
            return None
        commit = self._next_commit()
        if self.to_fail:
            self.to_fail -= 1
            raise FakeCommitUnknown(commit)
        self._leave(key[0], replace(seen, cursor=records[-1], commit=commit), records)
        if self.to_lose:
            self.to_lose -= 1
            raise FakeCommitUnknown(commit)
        return commit

    def has_landed(self, feed_id: int, commit: int) -> bool:
        """Whether a commit whose answer was lost is the one that the feed stands at."""
        self._require()
        return self.checkpoint(feed_id).commit == commit

    def take_back(self, changes: int) -> None:
        """Lose the last commits, as a promoted replica does or a restored backup."""
        for feed_id, rows, checkpoint in reversed(self._history[-changes:]):
            del self.rows.setdefault(feed_id, [])[rows:]
            self.checkpoints[feed_id] = checkpoint
        del self._history[-changes:]

    def is_as_left(self, seen: FakeCheckpoint, epoch: int, continues: int) -> bool:
        return seen.epoch == epoch and seen.commit == continues

    def _leave(self, feed_id: int, checkpoint: FakeCheckpoint, records: Sequence[int] = ()) -> FakeCheckpoint:
        rows = self.rows.setdefault(feed_id, [])
        self._history.append((feed_id, len(rows), self.checkpoint(feed_id)))
        rows.extend(records)
        self.checkpoints[feed_id] = checkpoint
        return checkpoint

    def _next_commit(self) -> int:
        self._commits += 1
        return self._commits

    def _require(self) -> None:
        if self.is_away:
            raise SinkUnavailable("sink (in memory): away")


class FakeBroker:
    """One queue a worker session. Messages are hints: it may lose and repeat them."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[FeedKey]] = {}
        self.sent: list[Assignment] = []
        """Every message ever sent, so that an old one can be delivered again."""
        self.to_lose = self.to_delay = 0
        self.copies = 1
        self.late: list[Assignment] = []
        """Messages that are still under way."""
        self.hangs = False
        """Whether it takes messages, and hands out none."""

    def send(self, messages: Iterable[Assignment]) -> None:
        for message in messages:
            self.sent.append(message)
            if self.to_lose:
                self.to_lose -= 1
            elif self.to_delay:
                self.to_delay -= 1
                self.late.append(message)
            else:
                self.deliver(message, times=self.copies)

    def deliver(self, message: Assignment, *, times: int = 1) -> None:
        """Put it into its worker's queue, however old it is."""
        self._queues.setdefault(message.queue, deque()).extend([message.key] * times)

    def deliver_late(self, messages: Iterable[Assignment]) -> None:
        """Deliver what was under way, in this order."""
        self.late = []
        for message in messages:
            self.deliver(message)

    def take(self, queue: str) -> list[FeedKey]:
        return [] if self.hangs else list(self._queues.pop(queue, ()))
