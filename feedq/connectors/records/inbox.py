"""What a library has delivered and the connector has not taken yet.

For libraries that call back for each message: the callbacks put, the generator takes everything there is.
The sum of sizes tells whoever reads the socket when to pause. One taker at a time, all on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from feedq.errors import FeedqError

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    """Items in the order of their arrival, or the error that ended it."""

    __slots__ = ("_bytes_max", "_failure", "_items", "_on_taken", "_size", "_waiter")

    def __init__(self, *, bytes_max: int, on_taken: Callable[[], None] = lambda: None) -> None:
        """``on_taken`` is called each time that there is room again."""
        self._bytes_max = bytes_max
        self._on_taken = on_taken
        self._items: list[Item] = []
        self._size = 0
        self._failure: FeedqError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size(self) -> int:
        """Of all items together."""
        return self._size

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be put; it is not refused."""
        return self._size >= self._bytes_max

    @property
    def failure(self) -> FeedqError | None:
        """Why nothing more will come."""
        return self._failure

    def put(self, item: Item, *, size: int) -> None:
        self._items.append(item)
        self._size += size
        self._wake()

    def fail(self, failure: FeedqError) -> None:
        """Nothing more will come; the first reason counts. `take` gives nothing more either: what was not
        taken was not acknowledged, so it comes again. Who knows better asks for the `rest`."""
        if self._failure is None:
            self._failure = failure
        self._wake()

    async def take(self) -> list[Item]:
        """Everything that has arrived, at least one item. Raises what `fail` was given."""
        while self._failure is None and not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._failure is not None:
            raise self._failure
        taken = self.rest()
        self._on_taken()
        return taken

    def rest(self) -> list[Item]:
        """What had arrived and was not taken when it ended."""
        taken, self._items, self._size = self._items, [], 0
        return taken

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
