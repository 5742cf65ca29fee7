"""Taking turns: however much one source sends at once, the other feeds of the worker are served meanwhile.

What a source sends comes in pieces of at most `PIECE_BYTES`, with a turn of the others between two of them:
whoever gives a piece sees to that (a connection, an inbox, what unpacks an answer), and whoever takes it just
works through it. Where a piece may hold more work than a tenth of a second, the work is a generator that yields
between small steps: `in_turns` runs it on a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import Final, TypeAlias, TypeVar

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]

TURN_S: Final = 0.01
"""Longer, and thousands of feeds notice it; shorter, and the loop turns more often than it works."""
PIECE_BYTES: Final = 64 * 1024
"""What is looked through at once: parsers take a tenth of a microsecond to a microsecond for each byte at
worst."""
STEP_RECORDS: Final = 64
"""Looked at in one step, if they are no larger than `PIECE_BYTES` together."""


async def others_turn() -> None:
    """Let the others of the loop have their turn."""
    await asyncio.sleep(0)


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
            await others_turn()
            began = perf_counter()


def at_once(steps: Steps[Result]) -> Result:
    """Runs the steps without a loop."""
    while True:
        try:
            next(steps)
        except StopIteration as over:
            result: Result = over.value
            return result
