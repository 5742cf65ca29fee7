"""The ends of those durations that one process goes by; `tests/simulation/test_durations.py` has the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import astuple
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
import uvloop

from feedq.core.model import Reason, Release
from feedq.core.worker import WATCHDOG_MIN_S
from feedq.settings import HEARTBEAT_MIN_S, Settings
from feedq.worker.runner import Interrupt
from feedq.worker.sink_pool import SinkEnds, SinkPool
from feedq.worker.sink_thread import Outage
from tests.fakes.control import current
from tests.lease_listener import RecordingListener
from tests.live.test_runner import Bench, numbered_source, options
from tests.simulation.durations import Bounds
from tests.unit.data_path import LIMIT_S, DataPath, batch, until

pytestmark = pytest.mark.usefixtures("control")


def on_uvloop(coroutine: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Its timers are in whole milliseconds, and those of workers."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine())


@pytest.mark.parametrize("interval_s", astuple(Bounds.of("reconcile_interval_s")))
def test_the_watchdog_does_not_make_a_pass_of_every_heartbeat(interval_s: float) -> None:
    store, recording = current().fresh_store(), RecordingListener()
    clock = store.clock
    settings = Settings(heartbeat_s=0, reconcile_interval_s=interval_s)
    lease_keeper = recording.make_keeper(store, settings, clock)
    for _ in range(200):
        clock.advance(HEARTBEAT_MIN_S)
        lease_keeper.beat()
    calls = recording.heard.count("reconcile overdue")
    assert calls == 0 if interval_s else 5 <= calls <= 200 * HEARTBEAT_MIN_S / WATCHDOG_MIN_S


@pytest.mark.parametrize("interval_s", astuple(Bounds.of("flush_interval_s")))
def test_a_writer_gathers_for_the_interval_and_no_longer(interval_s: float) -> None:
    async def gather() -> None:
        with DataPath(flush_interval_s=interval_s) as path:
            batch_queue = path.open_batch_queue((1, 1), "a")
            await batch_queue.put(batch(b"x", cursor=1))
            if interval_s:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await batch_queue.join()
                assert path.file.commits == 0
                path.writer.flush_now()
            async with asyncio.timeout(LIMIT_S):
                await batch_queue.join()
            assert path.file.commits == 1

    on_uvloop(gather)


@pytest.mark.parametrize("timeout_s", astuple(Bounds.of("drain_timeout_s")))
def test_a_stop_waits_for_the_last_commit_so_long(timeout_s: float) -> None:
    async def stop() -> Release | None:
        async with numbered_source() as source:
            with DataPath() as path:
                leaving = Bench(path, options(source), commit_timeout_s=timeout_s)
                leaving.start()
                await leaving.landed_at_least(1)
                path.file.locked_tables.add("landed")
                await until(lambda: path.file.postponed, "records wait for their commit")
                leaving.runner.interrupt(Interrupt.STOP, reason=Reason.RELEASED)
                if timeout_s:
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.2):
                            await asyncio.shield(leaving.end())
                    path.file.locked_tables.clear()
                release = await leaving.end()
                path.file.locked_tables.clear()
                if timeout_s:
                    assert path.file.checkpoint(1).cursor == len(leaving.landed)
                return release

    async def released() -> None:
        release = await stop()
        assert release is not None
        assert release.reason is Reason.RELEASED

    on_uvloop(released)


def test_a_loop_may_stand_still_for_ever_or_for_a_day() -> None:
    never, a_day = astuple(Bounds.of("stall_s"))
    for stall_s, stalled_s, is_withheld in (
        (never, 1e9, False),
        (a_day, a_day - 1, False),
        (a_day, a_day, True),
    ):
        store, recording = current().fresh_store(), RecordingListener()
        s = Settings(stall_s=stall_s)
        lease_keeper = recording.make_keeper(store, s, store.clock)
        lease_keeper.beat()
        recording.stalled = stalled_s
        lease_keeper.watch()
        assert lease_keeper.beat() is not is_withheld


def test_a_sink_is_down_for_those_who_waited_no_longer_than_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = SinkPool(Settings(), worker_id=uuid4, gone_workers=lambda _: set())
    outage = Outage("lake")
    outage.failed(OSError("away"), since=monotonic())
    with DataPath() as path:
        monkeypatch.setitem(ends._ends, "lake", SinkEnds(outage, path.writer, path.fencer))
    assert ends.down(for_s=0.0) == {"lake": "away"}
    assert ends.down(for_s=86_400.0) == {}
