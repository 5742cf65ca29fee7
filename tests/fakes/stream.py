"""A feed that a `FakeWorker` holds: how it takes over from whoever held it before, and how it writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from feedq.core.model import Claim, FeedKey
from feedq.errors import SinkUnavailable
from tests.fakes.servers import FakeCommitUnknown, FakeConnection, FakeSink


@dataclass(slots=True, eq=False)
class FakeStream:
    """One claim, from its fence to its end."""

    key: FeedKey
    claim: Claim
    is_fenced: bool = False
    cursor: int = 0
    continues: int = 0
    """The commit that the next write continues."""
    connection: FakeConnection | None = None
    pending: list[int] = field(default_factory=list)
    """Received, and not yet committed."""
    unknown: tuple[int, list[int]] | None = None
    """A commit whose answer was lost, and its records."""
    unreported: int = 0

    def take_over(self, worker_id: UUID, *, sink: FakeSink) -> bool:
        """Whether it may connect; False: the feed has another owner. Raises `SinkUnavailable`."""
        if self.is_fenced:
            return True
        fence = sink.fence(self.key, worker_id)
        if fence is not None:
            self.is_fenced, self.cursor, self.continues = True, fence.cursor, fence.commit
        return fence is not None

    def settle(self, sink: FakeSink) -> None:
        """Find out what became of a commit whose answer was lost. Raises `SinkUnavailable`."""
        if self.unknown is None:
            return
        commit, records = self.unknown
        if sink.has_landed(self.key[0], commit):
            self._landed(records, commit)
        else:
            self.pending = records + self.pending
        self.unknown = None

    def commit(self, sink: FakeSink) -> bool:
        """Write what is pending. What cannot be written now stays. False: the checkpoint is lost."""
        try:
            self.settle(sink)
            if self.pending:
                written = sink.write(self.key, self.continues, self.pending)
                if written is None:
                    return False
                self._landed(self.pending, written)
                self.pending = []
        except FakeCommitUnknown as lost:
            self.unknown, self.pending = (lost.commit, self.pending), []
        except SinkUnavailable:
            pass
        return True

    def _landed(self, records: list[int], commit: int) -> None:
        self.cursor, self.continues = records[-1], commit
        self.unreported += len(records)

    def begin_anew(self) -> None:
        """The checkpoint is lost: fence again, and resume where the sink says, if it is still ours."""
        self.disconnect()
        self.is_fenced = False

    def disconnect(self) -> None:
        """Cut the socket; what was not written will be sent again."""
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
