"""A feed that a `FakeWorker` holds, and how it takes over from whoever held it before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from feedq.model import Claim, FeedKey
from tests.fakes.memory import MemoryStore
from tests.fakes.servers import FakeConnection, FakeSink


@dataclass(slots=True)
class FakeStream:
    """One tenure."""

    key: FeedKey
    claim: Claim
    has_message: bool
    """Whether the message of its assignment has come. One more is a copy."""
    is_fenced: bool = False
    connection: FakeConnection | None = None
    pending: list[int] = field(default_factory=list)
    """Received, and not yet committed."""
    unreported: int = 0

    @property
    def claimed(self) -> FeedKey:
        """The key that it was claimed under: its epoch may have been raised since."""
        return self.claim.key

    def take_over(self, worker_id: UUID, *, store: MemoryStore, sink: FakeSink) -> int | None:
        """The cursor to go on after; None: the feed has another owner. Raises `Unavailable`."""
        if self.is_fenced:
            return sink.cursor(self.key)
        cursor = sink.fence(self.key)
        if cursor is None:
            # The sink is ahead of the lease: either we are stale, or the control database is (its lease row
            # was lost or restored), which then lets us raise the epoch.
            raised = store.leases.raise_epoch(worker_id, self.key, above=sink.epoch(self.key[0]))
            if raised is not None:
                self.key = raised
                cursor = sink.fence(raised)
        self.is_fenced = cursor is not None
        return cursor

    def disconnect(self) -> None:
        """Cut the socket; what was not committed will be sent again."""
        self.pending.clear()
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def numbers(feed_ids: Iterable[int]) -> str:
    """``feeds 1,2,3`` or ``feed 1`` or ``nothing``."""
    ids = sorted(feed_ids)
    if not ids:
        return "nothing"
    return f"feed{'s' if len(ids) > 1 else ''} {','.join(map(str, ids))}"
