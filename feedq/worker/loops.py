"""Calls onto event loops from other threads.

A loop that has been closed, at whatever moment, has nobody left to tell: such a call is dropped.
"""

from __future__ import annotations

import contextlib
from asyncio import AbstractEventLoop, Future
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def call_on(loop: AbstractEventLoop, callback: Callable[..., object], *arguments: object) -> None:
    """Have it called on that loop."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)


def call_on_each(
    loop_of: Callable[[T], AbstractEventLoop], callback: Callable[[list[T]], object], items: Iterable[T]
) -> None:
    """Have it called with the items of each loop, on that loop: one call for all of them."""
    by_loop: defaultdict[AbstractEventLoop, list[T]] = defaultdict(list)
    for item in items:
        by_loop[loop_of(item)].append(item)
    for loop, its_items in by_loop.items():
        call_on(loop, callback, its_items)


def resolve(future: Future[T], result: T) -> None:
    """Give it a result, unless whoever waits for that has been cancelled. On its loop."""
    if not future.done():
        future.set_result(result)
