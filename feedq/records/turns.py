"""Work on the event loop in turns: however much one source sends at once, the other feeds are served meanwhile.

What may take long is written as a generator that yields between its small steps. `in_turns` runs it, and lets the
loop go on each `TURN_S`; `at_once` runs it on a thread, where the interpreter itself takes turns. A single step is
up to its author: it should take a millisecond, and never more than a tenth of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from time import perf_counter
from typing import Final, TypeAlias, TypeVar

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]

TURN_S: Final = 0.01
"""Longer, and thousands of feeds notice it; shorter, and the loop turns more often than it works."""
SLICE_BYTES: Final = 64 * 1024
"""What is given to a parser at once that takes some tenths of a microsecond for each byte at worst."""


async def in_turns(steps: Steps[Result]) -> Result:
    """What the steps come to, with the loop's other work done between them."""
    began = perf_counter()
    while True:
        try:
            next(steps)
        except StopIteration as over:
            result: Result = over.value
            return result
        if perf_counter() - began >= TURN_S:
            await asyncio.sleep(0)
            began = perf_counter()


def at_once(steps: Steps[Result]) -> Result:
    """Runs the steps without a loop."""
    while True:
        try:
            next(steps)
        except StopIteration as over:
            result: Result = over.value
            return result


def slices(data: bytes | bytearray) -> Iterator[bytes | bytearray]:
    """``data`` in pieces of `SLICE_BYTES`; itself if it is no larger."""
    if len(data) <= SLICE_BYTES:
        yield data
        return
    with memoryview(data) as view:
        for start in range(0, len(data), SLICE_BYTES):
            yield bytes(view[start : start + SLICE_BYTES])
