"""A piece of data path for the unit tests: writers and fencers over a sink with faults, and small helpers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest

from feedq.core.backoff import BackoffPolicy
from feedq.core.clock import SystemClock
from feedq.core.model import JSON, Claim, Feed, FeedKey, FeedSpec
from feedq.core.permission import DEFAULT
from feedq.records.batch import Batch, Records
from feedq.settings import Settings
from feedq.sinks import refusals
from feedq.sinks.base import FenceRequest, Target
from feedq.worker.batch_queue import BatchQueue, InflightBudget
from feedq.worker.fencer import Fencer
from feedq.worker.pacing import ConnectLimiter, Pacing
from feedq.worker.progress_reporter import FeedProgress
from feedq.worker.runner import WorkerServices
from feedq.worker.sink_pool import SinkEnds, SinkPool
from feedq.worker.sink_thread import Outage
from feedq.worker.writer import Writer
from tests.fakes.sink import IDENTITY, FaultySink, SinkFile

TARGET = Target("landed", "bytes")
AT = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT_S = 30.0
FAST = BackoffPolicy(base_s=0.01, max_s=0.02, attempts_in_place=3, healthy_s=60)


class DataPath:
    """One sink, its writer and its fencer, for one worker."""

    set_aside_max = 0
    """As if each refused record were a flood of them: its feed is written apart."""

    def __init__(
        self,
        file: SinkFile | None = None,
        *,
        flush_interval_s: float = 0.01,
        flush_bytes: int = 2**20,
        inflight_max: int = 2**20,
        budget: int = 2**24,
        gone: set[UUID] | None = None,
    ) -> None:
        self.file = file or SinkFile()
        self.worker_id = uuid4()
        self._patch = pytest.MonkeyPatch()
        self.inflight_max = inflight_max
        self.budget = InflightBudget(budget)
        self.outage = Outage("default")
        self.writer = Writer(
            "default",
            self.make_sink,
            self.outage,
            flush_interval_s=flush_interval_s,
            flush_bytes=flush_bytes,
        )
        self.fencer = Fencer(
            "default",
            self.make_sink,
            self.outage,
            gone_workers=lambda ids: set(ids) & (gone or set()),
            lock_timeout_s=0.01,
        )

    def __enter__(self) -> DataPath:
        self._patch.setattr(refusals, "SET_ASIDE_MAX", self.set_aside_max)
        self.writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.stop(timeout_s=LIMIT_S)
        self.fencer.stop(timeout_s=LIMIT_S)
        self._patch.undo()

    def make_sink(self) -> FaultySink:
        return self.file.sink(self.worker_id)

    def fence(self, request: FenceRequest) -> None:
        with closing(self.file.plain) as plain:
            plain.fence([request], lock_timeout_s=LIMIT_S)

    def open_batch_queue(
        self,
        key: FeedKey,
        feed: str,
        *,
        cursor: JSON = None,
        continues: UUID | None = None,
        target: Target = TARGET,
        on_change: Callable[[], None] = lambda: None,
    ) -> BatchQueue:
        """That of a feed that is fenced, under the epoch of its key unless it has a checkpoint already."""
        self.fence(FenceRequest(key[0], feed, key[1], target, IDENTITY))
        spec = FeedSpec(name=feed, connector="tcp", source={}, sink={})
        claim = Claim(Feed(key[0], spec, 1, AT, AT, IDENTITY), key[1], 0)
        return BatchQueue(
            key,
            feed,
            target,
            cursor=cursor,
            continues=continues,
            budget=self.budget,
            inflight_max=self.inflight_max,
            writer=self.writer,
            progress=FeedProgress.of(claim, worker_services(PathPool(self))),
            on_change=on_change,
        )


class PathPool(SinkPool):
    """A pool whose only sink is that of a `DataPath`."""

    def __init__(self, path: DataPath) -> None:
        super().__init__(Settings(), worker_id=uuid4, gone_workers=lambda _: set())
        self.budget = path.budget
        self._path = path
        self.said_trouble: str | None = None

    def _ends_of(self, sink: str) -> SinkEnds:
        ends = self._ends[sink] = SinkEnds(self._path.outage, self._path.writer, self._path.fencer)
        return ends

    def trouble(self, sink: str) -> str | None:
        return self.said_trouble


def worker_services(sinks: PathPool, **given: Any) -> WorkerServices:
    """What all feeds of a worker share, with nothing behind it but what is given."""

    alone = WorkerServices(
        clock=SystemClock(),
        rng=Random(1),
        backoff=FAST,
        permissions=DEFAULT,
        environment="test",
        sinks=sinks,
        note_thread=lambda _: nullcontext(),
        pacing=Pacing({}, SystemClock()),
        connect_limiter=ConnectLimiter(0, {}, SystemClock(), rng=Random(1)),
        trusted=asyncio.Event(),
        commit_timeout_s=2.0,
        expected=lambda _, own: own,
        on_progress=lambda _: None,
        on_status=lambda _: None,
    )
    return replace(alone, **given)


def batch(*records: bytes, cursor: JSON) -> Batch:
    return Records(records=tuple(records)).batch(cursor=cursor, received_at=AT)


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.005)
