"""What the conformance tests of sinks are built from: a harness over one kind of sink, and things to write.

`tests.contract.sink_conformance` has the tests and says how to use them.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Protocol, TypeVar
from uuid import UUID

from feedq.core.model import JSON, FeedKey, Identity
from feedq.errors import SinkUnavailable
from feedq.records.batch import Batch, Records
from feedq.sinks.base import FeedWrite, Fenced, FenceRequest, Sink, Target, Written
from feedq.sinks.mapping import sources_of

ENVIRONMENT: Final = "test"
INSTALLATION: Final = UUID(int=1)
"""Whose feeds these tests land."""
RAW: Final = Target("raw", "json")
"""The target of nearly all tests: a table that feedq makes."""
PATIENCE_S: Final = 20.0
"""For what must happen, on however busy a machine; only a failing test waits this long."""
LOCK_TIMEOUT_S: Final = 0.1
TARGETS: Final = {
    "json": RAW,
    "text": Target("raw_text", "text"),
    "bytes": Target("raw_bytes", "bytes"),
}
NOWHERE: Final = Target("feedq_no_such_table", "json", sources_of({"a": "/a"}))
"""A table that nobody makes."""

Body = TypeVar("Body", bound=Callable[..., None])


class SinkHarness(Protocol):
    """Makes sinks of one kind, over a database of its own that is empty at first. Made anew for each test.

    The last six are for sinks with these properties only: see `tests.contract.sink_conformance`.
    """

    refused: bytes
    """A record that is JSON, and that the database itself refuses to store in `RAW`."""

    def sink(
        self, *, role: str = "writer", worker_id: UUID | None = None, environment: str = ENVIRONMENT
    ) -> Sink:
        """A sink for this test; closed with the harness. Without a worker's id, one of another worker each."""

    def rows(self, target: Target) -> Sequence[tuple[str, int, Any]]:
        """``(feed, epoch, payload)`` of each row of a default target, in the order in which they landed. The
        payload is a `str`, JSON being its text, or `bytes` where the format is."""

    def unreachable(self) -> Sink:
        """A sink whose database is away."""

    def close(self) -> None: ...

    def frozen(self, writes: Sequence[FeedWrite], *, worker_id: UUID) -> FrozenWrite:
        """A write of this worker that stands still before its commit, all else done."""

    def lost(self, writes: Sequence[FeedWrite], *, happened: bool) -> Sink:
        """A write whose answer was lost after its commit ``happened``, or before it could; and its sink."""

    def stranded(self, writes: Sequence[FeedWrite]) -> tuple[Sink, Callable[[], None]]:
        """A write whose answer was lost while its commit is still under way; calling lets the commit arrive."""

    def spoil(self, target: Target) -> bytes:
        """Have the database raise an error that no sink expects, by a trigger for one, over some JSON in a table
        that is there; returns that JSON."""

    def drop_table(self, target: Target) -> None:
        """Take the table away, as an operator does."""

    def hold(self, target: Target) -> AbstractContextManager[object]:
        """Lock the table, as an operator does."""


class FrozenWrite:
    """A write in a thread of its own that stands still inside its transaction."""

    def __init__(
        self,
        sink: Sink,
        writes: Sequence[FeedWrite],
        *,
        stopped: threading.Event,
        release: Callable[[], None],
    ) -> None:
        """``stopped`` is set once it stands still, and ``release`` lets it go on."""
        self._release = release
        self._result: Written | BaseException | None = None
        self._thread = threading.Thread(target=self._write, args=(sink, writes), daemon=True)
        self._thread.start()
        assert stopped.wait(PATIENCE_S), self._result

    def thaw(self) -> Written | BaseException:
        """Let it go on; returns what came of it."""
        self._release()
        self._thread.join(PATIENCE_S)
        assert self._result is not None
        return self._result

    def _write(self, sink: Sink, writes: Sequence[FeedWrite]) -> None:
        try:
            self._result = sink.write(writes)
        except BaseException as error:
            self._result = error


def needs(*properties: str) -> Callable[[Body], Body]:
    """A test that sinks with these properties are put through; for the others it is there by name only."""

    def mark(body: Body) -> Body:
        body.needs = properties  # type: ignore[attr-defined] # for `SinkStage.__init_subclass__`
        return body

    return mark


class SinkStage:
    """The properties of a sink; what one does not have is left out of its suite."""

    locks_feeds: ClassVar[bool] = True
    ends_sessions: ClassVar[bool] = True
    freezes: ClassVar[bool] = True
    loses_answers: ClassVar[bool] = True
    strands_commits: ClassVar[bool] = True
    meddles: ClassVar[bool] = True
    locks_tables: ClassVar[bool] = True
    refuses_in_transaction: ClassVar[bool] = True
    password: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        for name in dir(cls):
            lacking = [p for p in getattr(getattr(cls, name), "needs", ()) if not getattr(cls, p)]
            if lacking:
                setattr(cls, name, None)
                setattr(cls, f"{name}__left_out_for_want_of_{'_and_'.join(lacking)}", _left_out)


def _left_out(_: SinkStage) -> None:
    """Stands in place of a test; its name says why."""


# -- what is written -----------------------------------------------------------------------------------


def batch(*records: bytes, cursor: JSON = None) -> Batch:
    return Records(records=tuple(records)).batch(cursor=cursor, received_at=datetime.now(UTC))


def lines(*records: bytes, cursor: JSON = None) -> Batch:
    text = b"".join(record + b"\n" for record in records)
    return Records(text).batch(cursor=cursor, received_at=datetime.now(UTC))


def write(
    feed_id: int, epoch: int, *batches: Batch, target: Target = RAW, continues: UUID | None = None
) -> FeedWrite:
    return FeedWrite(feed_id, f"feed/{feed_id}", epoch, target, batches, continues)


def request(feed_id: int, epoch: int, target: Target = RAW) -> FenceRequest:
    return FenceRequest(feed_id, f"feed/{feed_id}", epoch, target, Identity(UUID(int=feed_id), INSTALLATION))


def fence(sink: Sink, feed_id: int, epoch: int, target: Target = RAW) -> Fenced:
    """Fence one feed, which must succeed."""
    (outcome,) = sink.fence([request(feed_id, epoch, target)], lock_timeout_s=PATIENCE_S)
    assert isinstance(outcome, Fenced), outcome
    return outcome


def fenced(harness: SinkHarness, target: Target = RAW, *, epoch: int = 1, **how: Any) -> Sink:
    """A sink for which feed 1 is fenced."""
    sink = harness.sink(**how)
    fence(sink, 1, epoch, target)
    return sink


def write_in_time(sink: Sink, writes: Sequence[FeedWrite], *, briefly: bool = False) -> Written:
    """Write as a worker does: together at first, and what is postponed by itself until it is decided."""
    deadline = time.monotonic() + PATIENCE_S
    landed: dict[FeedKey, int] = {}
    dead: dict[FeedKey, int] = {}
    lost: list[FeedKey] = []
    unusable: dict[FeedKey, str] = {}
    left = deque([list(writes)])
    while left:
        together = left.popleft()
        assert time.monotonic() < deadline, f"{len(left)} are still undecided"
        try:
            written = sink.write(together, briefly=briefly and len(together) > 1)
        except SinkUnavailable:
            if time.monotonic() > deadline:
                raise
            left.append(together)
            continue
        landed |= written.landed
        dead |= written.dead
        lost += written.lost
        unusable |= written.unusable
        left += [[write] for write in together if write.key in written.postponed]
    return Written(landed, dead, tuple(lost), unusable)


# -- what has landed -----------------------------------------------------------------------------------


def landed(harness: SinkHarness, target: Target = RAW) -> Counter[tuple[str, int, str]]:
    """Rows of a default target; JSON as one text for one meaning."""
    return Counter(ordered(harness, target))


def ordered(harness: SinkHarness, target: Target = RAW) -> list[tuple[str, int, str]]:
    """Returns the rows of a default landing in the order in which they landed."""
    return [(feed, epoch, shown(payload, target)) for feed, epoch, payload in harness.rows(target)]


def shown(payload: Any, target: Target = RAW) -> str:
    if target.format == "bytes":
        return bytes(payload).hex()
    if target.format != "json":
        return str(payload)
    return json.dumps(json.loads(payload), sort_keys=True)


def rows_of(feed_id: int, epoch: int, *payloads: str) -> Counter[tuple[str, int, str]]:
    return Counter((f"feed/{feed_id}", epoch, payload) for payload in payloads)


def dead(sink: Sink) -> list[tuple[str, int, bytes, JSON]]:
    """``(feed, epoch, record, cursor)`` of each dead letter, oldest first."""
    return [(x.feed, x.epoch, x.record, x.cursor) for x in reversed(sink.dead_letters(limit=10**6))]


def run_together(*works: Callable[[], None]) -> None:
    """Run them in threads, and raise what any of them raised."""
    errors: list[BaseException] = []

    def guard(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guard, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * PATIENCE_S)
        assert not thread.is_alive(), "stuck"
    if errors:
        raise errors[0]
