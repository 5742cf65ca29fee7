"""Interrupts at awkward moments: before a runner has begun, while it reads secrets, or over and over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from threading import Event
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.tcp import TcpOptions
from feedq.core.loss import Loss
from feedq.core.model import JSON, Reason
from feedq.errors import SourceSilent
from feedq.records.batch import Batch, Records
from feedq.worker.runner import Interrupt
from tests.fakes.sink import SinkFile
from tests.live.test_runner import streaming
from tests.unit.data_path import AT, until


class Deaf:
    """A connector that swallows every cancellation and goes on."""

    Options: ClassVar[type[ConnectorOptions]] = TcpOptions
    sent = 0

    def __init__(self, _options: Any, context: Context) -> None:
        self._context = context

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        self._context.on_connected()
        while True:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
            Deaf.sent += 1
            yield Records(records=(b'{"seq": %d}' % Deaf.sent,)).batch(cursor=Deaf.sent, received_at=AT)


class Complaining:
    """A connector that takes a cancellation for trouble at its source."""

    Options: ClassVar[type[ConnectorOptions]] = TcpOptions

    def __init__(self, _options: Any, context: Context) -> None:
        self._context = context

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        self._context.on_connected()
        yield Records(records=(b'{"seq": 1}',)).batch(cursor=1, received_at=AT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise SourceSilent("cut off") from None


@pytest.mark.parametrize("why", [Interrupt.STOP, Interrupt.LOST])
async def test_an_interrupt_that_comes_before_the_runner_has_begun_is_heeded(why: Interrupt) -> None:
    async with streaming(begins=False) as bench:
        bench.runner.interrupt(why, reason=Reason.PAUSED)
        bench.start()
        release = await bench.end()
    assert bench.source.hellos == [], "it connected in spite of the interrupt"
    assert (release and release.reason) == (Reason.PAUSED if why is Interrupt.STOP else None)


async def test_a_feed_that_is_blamed_while_it_stops_is_released_with_the_blame() -> None:
    blame = Loss("memory", "the worker used 90 MiB of 100", 1, is_certain=True)
    async with streaming(flush_interval_s=3600) as bench:
        await until(lambda: bench.path.budget.bytes > 100, "something was received")
        bench.path.file.away = True
        bench.runner.interrupt(Interrupt.STOP, reason=Reason.PAUSED)
        await until(lambda: bench.source.open == 0, "it waits for its last commit")
        bench.runner.interrupt(Interrupt.STOP, reason=Reason.QUARANTINED, error=blame.said, blame=blame)
        bench.path.file.away = False
        release = await bench.released()
    assert (release.reason, release.blame) == (Reason.PAUSED, blame)


async def test_an_interrupt_between_the_start_of_the_task_and_its_first_step_is_heeded() -> None:
    async with streaming() as bench:
        bench.runner.interrupt(Interrupt.LOST)
        assert await bench.end() is None
    assert bench.source.hellos == []


async def test_a_feed_that_is_lost_while_it_waits_to_be_fenced_asks_no_longer() -> None:
    file = SinkFile(locked={1})
    file.put_checkpoint(1, 1, uuid4())
    async with streaming(file=file, epoch=2) as bench:
        await until(lambda: bench.path.fencer._blocked, "somebody is in the way")
        bench.runner.interrupt(Interrupt.LOST)
        # A later stream of the feed may begin at once, and a group of fences names each feed once.
        assert all(waiting.future.cancelled() for waiting in bench.path.fencer._blocked)
        assert await bench.end() is None


@pytest.mark.parametrize("why", [Interrupt.STOP, Interrupt.SUSPEND])
async def test_a_feed_interrupted_while_it_reads_its_secrets_is_not_lost(
    why: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = Event(), Event()

    def slow(references: dict[str, str], **_: object) -> dict[str, str]:
        reading.set()
        assert go_on.wait(10)
        return dict.fromkeys(references, "secret")

    monkeypatch.setattr("feedq.worker.runner.resolve_secrets", slow)
    async with streaming(asked={"secrets": {"token": "${env:HOME}"}}) as bench:
        await until(reading.is_set, "reading its secrets")
        bench.runner.interrupt(why)
        await asyncio.sleep(0)
        go_on.set()
        if why is Interrupt.SUSPEND:
            await bench.landed_at_least(2)
            bench.runner.interrupt(Interrupt.STOP)
        release = await bench.released()
    assert release.reason is Reason.RELEASED


async def test_a_connector_that_swallows_cancellation_cannot_go_on_after_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("feedq.worker.runner.load_connector", lambda _: Deaf)
    async with streaming() as bench:
        await bench.landed_at_least(2)
        bench.runner.interrupt(Interrupt.STOP, reason=Reason.PAUSED)
        release = await bench.released()
    assert release.reason is Reason.PAUSED
    assert bench.landed == list(range(1, len(bench.landed) + 1))


async def test_an_interrupted_connection_is_no_failure_whatever_its_connector_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("feedq.worker.runner.load_connector", lambda _: Complaining)
    async with streaming() as bench:
        await bench.landed_at_least(1)
        bench.runner.interrupt(Interrupt.STOP, reason=Reason.PAUSED)
        release = await bench.released()
    report = bench.runner.progress.report()
    assert (release.reason, release.error) == (Reason.PAUSED, None)
    assert (report.failures, report.attempts, report.error, report.stalled) == (0, 0, None, False)


async def test_a_stop_that_is_asked_for_again_does_not_cut_the_letting_go_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("feedq.worker.runner.CANCEL_AGAIN_S", 0.0)
    async with streaming(flush_interval_s=3600) as bench:
        await until(lambda: bench.path.budget.bytes > 100, "something was received")
        bench.path.file.away = True
        bench.runner.interrupt(Interrupt.STOP, reason=Reason.PAUSED)
        for _ in range(20):
            bench.runner.interrupt(Interrupt.STOP, reason=Reason.PAUSED)
            await asyncio.sleep(0.005)
        bench.path.file.away = False
        release = await bench.released()
    assert release.reason is Reason.PAUSED
    assert bench.path.file.checkpoint(1).cursor == len(bench.landed) > 0
