"""Calls onto the event loop from other threads.

A loop that has been closed, at whatever moment, has nobody left to tell: such a call is dropped.
"""

from __future__ import annotations

import contextlib
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def call_on(loop: AbstractEventLoop, callback: Callable[..., object], *arguments: object) -> None:
    """Have it called on that loop."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)


def resolve(future: Future[T], result: T) -> None:
    """Give it a result, unless whoever waits for that has been cancelled. On its loop."""
    if not future.done():
        future.set_result(result)
