"""The one reading loop: pieces of a stream become records, records become batches, and a stream that cannot go on
says why.

A connector receives pieces, however its protocol brings them, and passes each through a `RecordStream`::

    stream = RecordStream(options.stream_framer(), context, cursor=cursor, …)
    while data := await connection.receive():
        for batch in stream.take(data):
            yield batch

It knows no socket and no loop: connectors that block use it as it is. That others have their turn is the business
of whoever gives the pieces, see `feedq.records.turns`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from feedq.connectors.base import Context
from feedq.core.model import JSON
from feedq.errors import FeedqError
from feedq.records.batch import Batch, Records
from feedq.records.framing import Refusal

Piece = TypeVar("Piece", contravariant=True)


class PieceFramer(Protocol[Piece]):
    """Makes records of the pieces of one stream."""

    @property
    def refusal(self) -> Refusal | None: ...

    def push(self, piece: Piece, /) -> Records: ...


class RecordStream(Generic[Piece]):
    """One stream of a source, and how far it has been read."""

    def __init__(
        self,
        framer: PieceFramer[Piece],
        context: Context,
        *,
        cursor: JSON,
        follow: Callable[[Records, JSON], JSON] | None,
        refuse: Callable[[Refusal, JSON], FeedqError],
    ) -> None:
        """``follow`` gives the cursor after some records from the one before them; without it the cursor stays.
        ``refuse`` gives the error of a stream that cannot go on after a cursor."""
        self.cursor = cursor
        """What to resume after, for the records that were given back."""
        self.was_heard = False
        """Whether anything has come."""
        self._framer = framer
        self._clock = context.clock
        self._follow = follow
        self._refuse = refuse

    def take(self, piece: Piece) -> Iterator[Batch]:
        """The batch that a piece completes, if it does. Raises why the stream cannot go on after that."""
        self.was_heard = True
        return self.batches(self._framer.push(piece))

    def batches(self, records: Records) -> Iterator[Batch]:
        """The batch of what the framer gave, if it gave any. Raises why the stream cannot go on after that."""
        if records:
            if self._follow is not None:
                self.cursor = self._follow(records, self.cursor)
            yield records.batch(cursor=self.cursor, received_at=self._clock.now())
        if (why := self._framer.refusal) is not None:
            raise self._refuse(why, self.cursor)
