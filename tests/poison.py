"""Connectors that end the process they run in, and one that counts: for tests and benchmarks of isolation.

``numbers`` yields ``{"n": 1}``, ``{"n": 2}`` … at its rate and resumes after any of them, so that a lost or
doubled record shows. After ``harmless`` records of a connection it does, as long as ``while_exists`` names a file,
what ``then`` says. ``blocking-numbers`` does the same on a thread of its own.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import AsyncGenerator, Iterator
from itertools import count
from pathlib import Path
from typing import ClassVar, Literal

from feedq.connectors.base import ConnectorOptions, Context
from feedq.core.model import JSON
from feedq.records.batch import Batch, Records

Deed = Literal["nothing", "sleep", "spin", "hold the lock", "abort", "exit", "grow", "grow at once"]
GROWTH_BYTES = 4 * 2**20
HOLD_S = 600


class NumbersOptions(ConnectorOptions):
    """Numbers, and what happens then."""

    per_s: float = 10.0
    harmless: int = 10
    """Records of a connection before the deed."""
    then: Deed = "nothing"
    while_exists: str = "/"


class Numbers:
    """Counts on the loop."""

    Options: ClassVar[type[ConnectorOptions]] = NumbersOptions

    def __init__(self, options: NumbersOptions, context: Context) -> None:
        self._options, self._context = options, context

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        assert cursor is None or isinstance(cursor, int)
        self._context.on_connected()
        kept: list[bytearray] = []
        for sent, n in enumerate(count((cursor or 0) + 1)):
            if sent >= self._options.harmless and is_poisonous(self._options):
                do(self._options.then, kept)
                await asyncio.sleep(0.02)
                continue
            yield record(n, self._context)
            await asyncio.sleep(1 / self._options.per_s)


class BlockingNumbers:
    """Counts on a thread."""

    Options: ClassVar[type[ConnectorOptions]] = NumbersOptions

    def __init__(self, options: NumbersOptions, context: Context) -> None:
        self._options, self._context = options, context

    def stream(self, cursor: JSON) -> Iterator[Batch]:
        assert cursor is None or isinstance(cursor, int)
        self._context.on_connected()
        kept: list[bytearray] = []
        for sent, n in enumerate(count((cursor or 0) + 1)):
            if sent >= self._options.harmless and is_poisonous(self._options):
                do(self._options.then, kept)
            yield record(n, self._context)
            self._context.stopping.wait(1 / self._options.per_s)


def is_poisonous(options: NumbersOptions) -> bool:
    return options.then != "nothing" and Path(options.while_exists).exists()


def record(n: int, context: Context) -> Batch:
    return Records(b'{"n":%d}\n' % n).batch(cursor=n, received_at=context.clock.now())


def do(deed: Deed, kept: list[bytearray]) -> None:
    """What a careless connector, or a library of it, does to its process."""
    match deed:
        case "sleep":
            time.sleep(HOLD_S)  # what it does wrong
        case "spin":
            while True:
                pass
        case "hold the lock":
            ctypes.PyDLL(None).sleep(HOLD_S)  # a call into C that does not let go of the interpreter
        case "abort":
            os.abort()
        case "exit":
            os._exit(3)
        case "grow":
            kept.append(bytearray(os.urandom(1) * GROWTH_BYTES))
        case "grow at once":
            kept += [bytearray(b"x" * GROWTH_BYTES) for _ in range(2**20)]


def install(directory: Path) -> None:
    """Make these connectors known to every process that has this directory on its ``PYTHONPATH``."""
    metadata = directory / "poison-1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: poison\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[feedq.connectors]\n"
        "numbers = tests.poison:Numbers\n"
        "blocking-numbers = tests.poison:BlockingNumbers\n"
    )
