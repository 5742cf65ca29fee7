"""One feed's life, over the real ``tcp`` connector on a loopback source and a sink with faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from feedq.connectors.base import load_connector
from feedq.core.model import (
    Claim,
    Feed,
    FeedBackfill,
    FeedSpec,
    Reason,
    Release,
    StartCursor,
    Status,
)
from feedq.sinks.base import CheckpointChange
from feedq.telemetry.metrics import REGISTRY
from feedq.testing.loopback import serving
from feedq.worker import pacing
from feedq.worker.progress_reporter import FeedProgress
from feedq.worker.runner import FeedRunner, Interrupt
from tests.fakes.sink import IDENTITY, SinkFile
from tests.live import odd_connector
from tests.unit.data_path import AT, FAST, DataPath, PathPool, until, worker_services


class NumberedSource:
    """Sends ``{"seq": n}`` lines after the cursor it is told, up to ``count`` a connection."""

    def __init__(self, *, count: int = 1_000_000, garbage: bytes = b"", last: int | None = None) -> None:
        self.count = count
        self.hellos: list[Any] = []
        self.open = 0
        self.most_open = 0
        self.port = 0
        self.garbage = garbage
        self.sent = 0
        self.last = last
        """After this record it says nothing more, once ``may_send_last`` is set, and keeps the connection."""
        self.may_send_last = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            hello = msgspec.json.decode(await reader.readline())
            self.hellos.append(hello)
            n = hello["from"] or 0
            for _ in range(self.count):
                n += 1
                if n == self.last:
                    await self.may_send_last.wait()
                writer.write(b'{"seq": %d}\n' % n + self.garbage)
                await writer.drain()
                self.sent = n
                if n == self.last:
                    await reader.read()
                await asyncio.sleep(0.001)
        except (ConnectionError, msgspec.DecodeError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def numbered_source(source: NumberedSource | None = None) -> AsyncIterator[NumberedSource]:
    source = source or NumberedSource()
    server = await asyncio.start_server(source.serve, "127.0.0.1", 0)
    source.port = server.sockets[0].getsockname()[1]
    try:
        yield source
    finally:
        server.close()


class Bench:
    """A runner and what surrounds it."""

    source: NumberedSource
    """What it streams from; see `streaming`."""

    def __init__(
        self,
        path: DataPath,
        source: dict[str, Any],
        *,
        epoch: int = 1,
        table: str = "landed",
        connector: str = "tcp",
        attempts: int = 0,
        is_new_here: bool = False,
        has_failed: bool = False,
        failures: int = 0,
        backfill: FeedBackfill | None = None,
        **given: Any,
    ) -> None:
        self.path = path
        self.sinks = PathPool(path)
        self.trusted = asyncio.Event()
        self.trusted.set()
        spec = FeedSpec(
            name="acme/orders" if backfill is None else "acme/orders~backfill",
            connector=connector,
            source=source,
            sink={"table": table},
            initial_cursor=None if backfill is None else backfill.begins_after,
        )
        claim = Claim(
            Feed(1, spec, 1, AT, AT, IDENTITY, backfill=backfill),
            epoch,
            attempts,
            failures,
            is_new_here=is_new_here,
            has_failed=has_failed,
        )
        services = worker_services(
            self.sinks,
            trusted=self.trusted,
            **given,
        )
        self.runner = FeedRunner(claim, services)
        self.task: asyncio.Task[Release | None] | None = None

    def start(self) -> asyncio.Task[Release | None]:
        self.task = asyncio.create_task(self.runner.run())
        return self.task

    async def end(self) -> Release | None:
        assert self.task is not None
        async with asyncio.timeout(10):
            return await self.task

    async def released(self) -> Release:
        release = await self.end()
        assert release is not None
        return release

    async def stop(self) -> Release:
        """What it releases when it is told to stop."""
        self.runner.interrupt(Interrupt.STOP)
        return await self.released()

    @property
    def landed(self) -> list[int]:
        rows = self.path.file.rows.get("acme/orders", [])
        return [msgspec.json.decode(row)["seq"] for row in rows]

    async def landed_at_least(self, count: int) -> None:
        await until(lambda: len(self.landed) >= count, f"{count} landed")


def options(source: NumberedSource, **more: Any) -> dict[str, Any]:
    return {
        "url": f"tcp://127.0.0.1:{source.port}",
        "hello": '{"feed": {name}, "from": {cursor}}\\n',
        "cursor": "/seq",
        **more,
    }


@asynccontextmanager
async def streaming(
    source: NumberedSource | None = None,
    *,
    file: SinkFile | None = None,
    flush_interval_s: float = 0.01,
    asked: Mapping[str, Any] | None = None,
    begins: bool = True,
    **surroundings: Any,
) -> AsyncIterator[Bench]:
    """A runner that has begun, over a source of numbers; ``asked`` are more options of the feed."""
    async with numbered_source(source) as serving_it:
        with DataPath(file, flush_interval_s=flush_interval_s) as path:
            bench = Bench(path, options(serving_it, **(asked or {})), **surroundings)
            bench.source = serving_it
            if begins:
                bench.start()
            yield bench


async def test_a_stop_commits_what_was_received_before_it_lets_go() -> None:
    async with streaming(flush_interval_s=3600) as bench:
        await until(lambda: bench.path.budget.bytes > 100, "something was received")
        await bench.stop()
        await until(lambda: bench.source.open == 0, "the socket is closed")
    assert bench.landed == list(range(1, len(bench.landed) + 1))
    assert bench.path.file.checkpoint(1).cursor == len(bench.landed) > 0


async def test_it_reports_refusals_the_sinks_trouble_and_failures_until_a_record_lands() -> None:
    async with streaming(file=SinkFile(poison=b'"seq": 3,'), begins=False) as bench:
        bench.runner.progress.failures = 4
        bench.start()
        await bench.landed_at_least(5)
        await until(lambda: bench.runner.progress.report().failures == 0, "a record has landed")
        bench.sinks.said_trouble = "sink 'default': away"
        first, second = bench.runner.progress.report(), bench.runner.progress.report()
        assert (first.sink_error, first.error) == ("sink 'default': away",) * 2
        assert (second.sink_error, second.error) == ("sink 'default': away", None)
        bench.sinks.said_trouble = None
        assert bench.runner.progress.report().sink_error is None
        bench.runner.interrupt(Interrupt.STOP, reason=Reason.BACKOFF, error="nobody writes here")
        release = await bench.released()
    assert (release.reason, release.error) == (Reason.BACKOFF, "nobody writes here")
    assert bench.runner.progress.report().failures == 1


async def test_failures_are_forgotten_once_a_quiet_connection_has_held() -> None:
    """Its source was away, and is back, and has nothing to send."""
    told: list[tuple[bool, int]] = []

    def tell(progress: FeedProgress) -> None:
        told.append((progress.is_connected, progress.failures))

    policy = replace(FAST, healthy_s=0.05)
    quiet = NumberedSource(last=1)
    async with streaming(quiet, failures=4, attempts=4, backoff=policy, on_status=tell) as bench:
        await until(lambda: told[-1:] == [(True, 0)], "it has held")
        assert (True, 4) in told
        assert bench.runner.progress.attempts == 0
        await bench.stop()


async def test_a_feed_over_its_rate_limit_takes_nothing_more_and_loses_nothing() -> None:
    async with streaming(asked={"limits": {"rows_per_s": 1e-3}}) as bench:
        await bench.landed_at_least(1)
        landed = len(bench.landed)
        await until(lambda: bench.source.sent > landed + 100, "the source has sent more")
        assert len(bench.landed) == landed, "a row of a thousand seconds from now has landed"
        await bench.stop()
    assert bench.landed == list(range(1, landed + 1))
    assert bench.path.file.checkpoint(1).cursor == landed


async def test_a_feed_over_its_rate_limit_hears_at_once_that_its_table_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pacing, "THROTTLE_NAP_S_MAX", 0.05)
    async with streaming(flush_interval_s=0.5, asked={"limits": {"rows_per_s": 1e-3}}) as bench:
        await until(lambda: bench.path.budget.bytes, "a batch is on its way")
        bench.path.file.unusable["landed"] = "table 'landed' is gone"
        release = await bench.released()
    assert (release.reason, release.error) == (Reason.FAILED, "table 'landed' is gone")


async def test_a_source_that_says_when_is_not_asked_before() -> None:
    asked: list[float] = []

    async def busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(asyncio.get_running_loop().time())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with serving(busy) as port:
        with DataPath() as path:
            bench = Bench(path, {"url": f"http://127.0.0.1:{port}/"}, connector="http")
            bench.start()
            await until(lambda: len(asked) >= 2, "it is asked again")
            await bench.stop()
    # Both clocks are the same, and the answer comes after the question: this holds on any machine.
    assert asked[1] - asked[0] > 1


async def test_a_connector_that_leaves_the_process_is_only_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a coroutine, SystemExit would end the event loop, and with it every feed of the worker."""
    install_odd_connector(tmp_path, monkeypatch)
    with DataPath() as path:
        bench = Bench(path, {"how": "exits"}, connector="odd")
        bench.start()
        release = await bench.released()
    assert release.reason is Reason.BACKOFF
    assert release.error == "unexpected error in connector: SystemExit(3)"


def install_odd_connector(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd_connector.install(directory)
    monkeypatch.syspath_prepend(str(directory))
    load_connector.cache_clear()


async def test_a_connection_that_breaks_is_made_again_without_loss_or_double() -> None:
    async with streaming(NumberedSource(count=7)) as bench:
        release = await bench.released()
    assert release.reason is Reason.BACKOFF, "after three failures in a row another worker may try"
    assert (release.attempts, release.error) == (3, release.error)
    assert release.error is not None
    assert "closed" in release.error
    assert bench.runner.progress.report().failures <= 1, "it landed records after each of the others"
    assert bench.landed == list(range(1, 22))
    assert bench.source.most_open == 1


async def test_a_suspended_runner_cuts_its_connection_and_goes_on_where_it_was() -> None:
    async with streaming() as bench:
        await bench.landed_at_least(5)
        bench.trusted.clear()
        bench.runner.sockets.cut()
        bench.runner.interrupt(Interrupt.SUSPEND)
        await until(lambda: bench.source.open == 0, "cut")
        # A moment, to see that nothing happens.
        await asyncio.sleep(0.05)
        assert len(bench.source.hellos) == 1, "connected while the lease was not trusted"
        before = len(bench.landed)
        bench.trusted.set()
        await bench.landed_at_least(before + 5)
        await bench.stop()
    assert bench.landed == list(range(1, len(bench.landed) + 1))
    assert bench.source.most_open == 1


async def fence_off(bench: Bench) -> Release:
    """What it releases when another owner has begun."""
    with bench.path.file.lock():
        bench.path.file.put_checkpoint(1, 2, uuid4())
        landed = len(bench.landed)
    release = await bench.released()
    assert len(bench.landed) == landed, "it wrote after it was fenced"
    return release


async def test_a_newer_epoch_in_the_sink_ends_it_and_the_feed_may_be_placed_again_at_once() -> None:
    async with streaming() as bench:
        await bench.landed_at_least(3)
        release = await fence_off(bench)
    assert (release.reason, release.retry_in_s, release.attempts) == (Reason.FENCED, 0.0, 1)
    assert "epoch 1 was superseded" in (release.error or "")
    assert not bench.runner.progress.report().connected


async def test_a_feed_that_was_fenced_while_its_source_says_nothing_more_ends_all_the_same() -> None:
    async with streaming(NumberedSource(last=4)) as bench:
        await bench.landed_at_least(3)
        bench.source.may_send_last.set()
        assert (await fence_off(bench)).reason is Reason.FENCED


async def test_lost_overrides_a_stop_that_is_under_way() -> None:
    async with streaming() as bench:
        await bench.landed_at_least(3)
        bench.path.file.away = True
        await until(lambda: bench.path.budget.bytes > 100, "something waits to be committed")
        bench.runner.interrupt(Interrupt.STOP)
        await until(lambda: bench.source.open == 0, "it has begun to let go")
        bench.runner.interrupt(Interrupt.LOST)
        assert await bench.end() is None
        bench.path.file.away = False


async def test_a_sink_ahead_of_a_restored_control_database_has_the_feed_released_with_its_epoch() -> None:
    file = SinkFile()
    file.put_checkpoint(1, 99, uuid4(), cursor=5)
    async with streaming(file=file, epoch=1) as bench:
        release = await bench.released()
        assert bench.landed == []
    assert (release.key, release.sink_epoch) == ((1, 1), 99)
    assert (release.reason, release.retry_in_s) == (Reason.FENCED, 0.0)


async def test_a_live_predecessor_is_waited_for() -> None:
    file = SinkFile(locked={1})
    file.put_checkpoint(1, 1, uuid4(), cursor=7)
    async with streaming(file=file, epoch=2) as bench:
        # A moment, to see that nothing happens.
        await asyncio.sleep(0.1)
        assert bench.source.hellos == []
        with file.lock():
            file.locked.clear()
        await bench.landed_at_least(2)
        await bench.stop()


async def test_a_source_that_is_not_there_is_tried_again_and_then_let_go() -> None:
    with DataPath() as path:
        bench = Bench(path, {"url": "tcp://127.0.0.1:1"})
        bench.start()
        release = await bench.released()
    assert (release.reason, release.attempts) == (Reason.BACKOFF, 3)
    assert "127.0.0.1:1" in (release.error or "")
    assert bench.runner.progress.report().failures == 3
    assert bench.runner.progress.status(is_still=False) is Status.FAILING


async def test_a_feed_most_of_whose_records_are_refused_is_refusing_on_its_worker_too() -> None:
    async with streaming() as bench:
        bench.path.file.poison = b'"seq"'
        # Rates are measured with each report.
        await until(
            lambda: (
                bench.runner.progress.report()
                and bench.runner.progress.status(is_still=False) is Status.REFUSING
            ),
            "refusing",
        )
        assert bench.runner.progress.status(is_still=True) is Status.STALLED
        await bench.stop()


async def test_what_waits_to_be_written_has_an_age_until_some_of_it_is() -> None:
    async with streaming(begins=False) as bench:
        assert bench.runner.progress.unwritten_s == 0
        bench.start()
        await bench.landed_at_least(2)
        bench.path.file.away = True
        await until(lambda: bench.runner.progress.unwritten_s > 0.3, "it waits")
        bench.path.file.away = False
        await until(lambda: bench.runner.progress.unwritten_s < 0.3, "it is written")
        await bench.stop()
        assert bench.runner.progress.unwritten_s == 0


@pytest.mark.parametrize(("is_new_here", "attempts"), [(True, 4), (False, 6)])
async def test_a_feed_that_another_worker_let_go_stays_only_where_it_has_failed_before(
    is_new_here: bool, attempts: int
) -> None:
    with DataPath() as path:
        bench = Bench(path, {"url": "tcp://127.0.0.1:1"}, attempts=3, is_new_here=is_new_here)
        bench.start()
        release = await bench.released()
    assert (release.reason, release.attempts) == (Reason.BACKOFF, attempts)


@pytest.mark.parametrize(("has_failed", "looks"), [(False, 1), (True, 8)])
async def test_looks_at_what_cannot_run_are_counted_apart_from_failures_of_the_source(
    has_failed: bool, looks: int
) -> None:
    file = SinkFile(unusable={"landed": "table landed does not exist"})
    async with streaming(file=file, attempts=7, has_failed=has_failed) as bench:
        release = await bench.released()
    assert (release.reason, release.attempts) == (Reason.FAILED, looks)
    assert bench.runner.progress.report().attempts == (0 if has_failed else 7), (
        "a look is no try at the source"
    )
    bound_s = FAST.failed_s if looks == 1 else FAST.failed_s * 1.5**2
    assert 0.8 * bound_s <= release.retry_in_s <= bound_s


async def test_somebody_elses_cancellation_is_not_swallowed() -> None:
    async with streaming(begins=False) as bench:
        task = bench.start()
        await bench.landed_at_least(2)
        task.cancel()
        async with asyncio.timeout(10):
            await asyncio.wait([task])
        assert task.cancelled()


async def test_what_came_before_a_record_that_cannot_pass_has_landed_when_the_feed_fails() -> None:
    async with streaming(
        NumberedSource(garbage=b'{"seq": 2, "pad": "' + b"x" * 2000 + b'"}\n'),
        flush_interval_s=0.2,
        asked={"max_record_bytes": 1000},
    ) as bench:
        release = await bench.released()
    assert release.reason is Reason.FAILED
    assert "1000" in (release.error or "")
    assert bench.landed == [1]


@pytest.mark.parametrize("gone", [False, True])
async def test_a_sink_that_went_back_is_gone_on_with_from_the_cursor_that_it_has(gone: bool) -> None:
    """Rows and checkpoint went back together: what is missing is asked for again, and nothing else."""
    file, rewinds = SinkFile(), sink_rewinds()
    async with streaming(file=file) as bench:
        await bench.landed_at_least(20)
        with file.lock():
            kept = 0 if gone else 5
            file.delete_rows("acme/orders", after=kept)
            if gone:
                file.execute("DELETE FROM feedq_checkpoint")
            else:
                file.put_checkpoint(1, 1, bench.path.worker_id, cursor=bench.landed[-1])
        await bench.landed_at_least(40)
        progress = bench.runner.progress.report()
        await bench.stop()
    first = bench.landed[0]
    assert bench.landed == list(range(first, first + len(bench.landed)))
    assert progress.rewind is not None
    rewind = progress.rewind
    assert (rewind.sink, rewind.found_at) == ("default", None if gone else first + 4)
    assert isinstance(rewind.left_at, int)
    assert rewind.left_at >= first + 19
    # What has landed twice was counted twice, and nothing was counted down.
    assert progress.records >= 40
    assert bench.runner.progress.report().rewind is None
    assert sink_rewinds() == rewinds + 1


def sink_rewinds() -> float:
    return REGISTRY.get_sample_value("feedq_sink_rewinds_total") or 0.0


async def test_a_cursor_that_a_person_gave_is_gone_on_from_and_is_no_sink_that_went_back() -> None:
    file, rewinds = SinkFile(), sink_rewinds()
    async with streaming(file=file) as bench:
        await bench.landed_at_least(20)
        change = CheckpointChange(1, "acme/orders", IDENTITY, lambda own: StartCursor(5, 5))
        bench.path.make_sink().change_checkpoint(change)
        await until(lambda: bench.landed.count(6) == 2, "the source is asked again")
        progress = bench.runner.progress.report()
        await bench.stop()
    assert (progress.rewind, progress.error, sink_rewinds()) == (None, None, rewinds)


async def test_an_owner_whose_epoch_was_given_out_twice_gives_way() -> None:
    file = SinkFile()
    async with streaming(file=file, begins=False) as bench:
        bench.start()
        await bench.landed_at_least(5)
        with file.lock():
            file.put_checkpoint(1, 1, uuid4(), cursor=0)
            landed = len(bench.landed)
        release = await bench.released()
    assert release.reason is Reason.FENCED
    assert len(bench.landed) == landed
