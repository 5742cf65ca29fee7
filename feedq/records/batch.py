"""Records of a feed, and batches of them: what framers give, connectors yield and sinks land."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import attrgetter

from feedq.core.model import JSON


@dataclass(slots=True)
class Records:
    """Records in order, in one of two forms. Treat it as immutable: it is not frozen only because that makes
    creating one three times as fast.

    ``lines`` is the fast path: whole records, none of them empty or holding a newline or carriage return, each
    *ended* by ``\\n``. ``records`` is the general one.
    """

    lines: bytes | None = None
    records: tuple[bytes, ...] | None = None

    @classmethod
    def of(cls, records: Iterable[bytes]) -> Records:
        """Records in the fast form if it can hold them, else in the general one."""
        kept = tuple(records)
        lines = as_lines(kept)
        fits = b"\r" not in lines and lines.count(b"\n") == len(kept) and all(kept)
        return Records(lines=lines) if fits else Records(records=kept)

    def __bool__(self) -> bool:
        return bool(self.lines or self.records)

    def split(self) -> tuple[bytes, ...]:
        """The records one by one: the plain reference that the fast path must equal."""
        if self.records is not None:
            return self.records
        return tuple(self.lines[:-1].split(b"\n")) if self.lines else ()

    def first(self, count: int) -> tuple[bytes, ...]:
        """The first records, without splitting the others."""
        if self.lines is None:
            return self.split()[:count]
        return tuple(filter(None, self.lines.split(b"\n", count)[:count]))

    @property
    def last(self) -> bytes:
        """The last record; empty if there is none."""
        if self.lines is None:
            return self.records[-1] if self.records else b""
        end = len(self.lines) - 1
        return self.lines[self.lines.rfind(b"\n", 0, max(0, end)) + 1 : end]

    def backwards(self) -> Iterator[bytes]:
        """The records from the last to the first, none cut out before it is asked for."""
        yield from reversed(self.records or ())
        lines = self.lines or b""
        end = len(lines) - 1
        while end > 0:
            start = lines.rfind(b"\n", 0, end) + 1
            yield lines[start:end]
            end = start - 1

    def leaving_out(self, is_excluded: Callable[[bytes], bool]) -> Records:
        """The records without those that are not part of the feed."""
        kept = [record for record in self.split() if not is_excluded(record)]
        return Records(records=tuple(kept)) if self.lines is None else Records(lines=as_lines(kept))

    def batch(
        self, *, cursor: JSON, received_at: datetime, on_committed: Callable[[], None] | None = None
    ) -> Batch:
        """A batch of these records."""
        lines, records = self.lines, self.records
        if records is not None:
            count, size = len(records), sum(map(len, records))
        else:
            lines = lines or b""
            # A quarter of the time that counting the newlines takes.
            count, size = len(lines) - len(lines.replace(b"\n", b"")), len(lines)
        return Batch(
            lines,
            records,
            count=count,
            size=size,
            cursor=cursor,
            received_at=received_at,
            on_committed=on_committed,
        )


_size = attrgetter("size")


def size_of(batches: Iterable[Batch]) -> int:
    """The bytes of all records of some batches."""
    return sum(map(_size, batches))


def as_lines(records: Sequence[bytes]) -> bytes:
    """Records without a line break in them, each ended by one."""
    return b"\n".join([*records, b""])


@dataclass(slots=True, kw_only=True)
class Batch(Records):
    """Records of one feed, and the cursor to resume *after* the last of them."""

    count: int
    size: int
    """Bytes of all records, for limits and backpressure."""
    cursor: JSON
    received_at: datetime
    on_committed: Callable[[], None] | None = field(default=None, compare=False)
    """Called on the feed's loop once the batch is committed, for sources that want it acknowledged; perhaps
    after its connection has ended. Not called for what was not committed."""

    def without(self, places: Collection[int]) -> Batch:
        """The batch without the records at these places; it has its cursor even with none left."""
        kept = [record for place, record in enumerate(self.split()) if place not in places]
        count, size = len(kept), sum(map(len, kept))
        if self.lines is None:
            return replace(self, count=count, size=size, records=tuple(kept))
        return replace(self, count=count, size=size + count, lines=as_lines(kept))
