"""Plain generators on threads: one batch handed over at a time, stopped in time, left behind when they hang."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from feedq.connectors.base import NEVER, ConnectorOptions, Context
from feedq.connectors.blocking import dialed, open_stream
from feedq.core.clock import SystemClock
from feedq.core.model import JSON
from feedq.errors import SourceUnavailable
from feedq.records.batch import Batch, Records
from feedq.telemetry.logs import LogEvent
from feedq.testing.loopback import PATIENCE_S, RecordingGuard, until

Source = Callable[[Context], Iterator[Batch]]


def batch(number: int) -> Batch:
    return Records(records=(b"%d" % number,)).batch(cursor=number, received_at=SystemClock().now())


def a_context() -> Context:
    return Context("acme/orders", SystemClock(), RecordingGuard(), lambda: None, {})


def opened(source: Source, context: Context | None = None, *, cursor: JSON = None) -> Any:
    class Plain:
        Options: ClassVar[type[ConnectorOptions]] = ConnectorOptions

        def __init__(self, options: ConnectorOptions, context: Context) -> None:
            self._context = context

        def stream(self, cursor: JSON) -> Iterator[Batch]:
            yield from source(self._context)

    return open_stream(Plain, ConnectorOptions(), context=context or a_context(), cursor=cursor)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("feedq-acme/")]


async def drain(stream: Any, seen: list[JSON] | None = None) -> None:
    async with aclosing(stream):
        async for taken in stream:
            if seen is not None:
                seen.append(taken.cursor)


@asynccontextmanager
async def held(release: threading.Event) -> AsyncIterator[None]:
    """Whatever a test's generator waits for, it does not wait for it after the test."""
    try:
        yield
    finally:
        release.set()
        await until(lambda: not threads())


async def test_a_generator_that_exits_ends_its_feed_and_not_the_loop() -> None:
    def source(_: Context) -> Iterator[Batch]:
        yield batch(1)
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
        await drain(opened(source))


async def test_the_generator_runs_and_is_closed_on_one_thread_and_callbacks_on_the_loop() -> None:
    where: dict[str, int] = {}

    def source(context: Context) -> Iterator[Batch]:
        where["run"] = threading.get_ident()
        context.on_connected()
        try:
            yield batch(1)
            yield batch(2)
        finally:
            where["closed"] = threading.get_ident()

    def connected() -> None:
        where["connected"] = threading.get_ident()

    async with aclosing(opened(source, replace(a_context(), on_connected=connected))) as stream:
        await anext(stream)
        assert where["connected"] == threading.get_ident() != where["run"]
    assert where["closed"] == where["run"]


async def test_a_generator_that_is_not_pulled_goes_one_batch_ahead_and_waits() -> None:
    made = 0

    def source(_: Context) -> Iterator[Batch]:
        nonlocal made
        while True:
            made += 1
            yield batch(made)

    async with aclosing(opened(source)) as stream:
        assert (await anext(stream)).cursor == 1
        await until(lambda: made == 2)
        # To see that nothing happens takes a moment.
        await asyncio.sleep(0.1)
        assert made == 2
        assert [(await anext(stream)).cursor for _ in range(1_000)] == list(range(2, 1_002))


async def test_cancelling_sets_stopping_and_the_finally_of_the_generator_runs() -> None:
    waiting, ended = threading.Event(), threading.Event()

    def source(context: Context) -> Iterator[Batch]:
        yield batch(1)
        waiting.set()
        try:
            assert context.stopping.wait(PATIENCE_S)
        finally:
            ended.set()

    async with aclosing(opened(source)) as stream:
        await anext(stream)
        task = asyncio.ensure_future(anext(stream))
        await until(waiting.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()
    assert not NEVER.is_set()
    await until(lambda: not threads())


async def test_a_read_that_blocks_is_woken_by_its_socket_being_shut() -> None:
    guard = RecordingGuard()
    ours, theirs = socket.socketpair()

    def source(context: Context) -> Iterator[Batch]:
        yield batch(1)
        context.guard.watch(ours.fileno())
        try:
            reading.set()
            ours.recv(1)
        finally:
            context.guard.forget(ours.fileno())

    reading = threading.Event()
    with ours, theirs:
        async with aclosing(opened(source, replace(a_context(), guard=guard))) as stream:
            await anext(stream)
            task = asyncio.ensure_future(anext(stream))
            await until(reading.is_set)
            assert guard.watched == {ours.fileno()}
            task.cancel()
            await asyncio.wait([task])
        assert not guard.watched
        await until(lambda: not threads())


async def test_a_socket_that_is_opened_after_the_stop_is_shut_at_once() -> None:
    ours, theirs = socket.socketpair()
    waiting = threading.Event()
    received: list[bytes] = []

    def source(context: Context) -> Iterator[Batch]:
        yield batch(1)
        waiting.set()
        context.stopping.wait(PATIENCE_S)
        context.guard.watch(ours.fileno())
        received.append(ours.recv(1))
        context.guard.forget(ours.fileno())

    with ours, theirs:
        async with aclosing(opened(source)) as stream:
            await anext(stream)
            await until(waiting.is_set)
        await until(lambda: not threads())
    assert received == [b""]


async def test_a_generator_that_heeds_nothing_is_left_behind_named_and_harmless() -> None:
    waiting, release = threading.Event(), threading.Event()
    later: list[int] = []

    def source(_: Context) -> Iterator[Batch]:
        yield batch(1)
        waiting.set()
        release.wait(PATIENCE_S)
        later.append(2)
        yield batch(2)
        later.append(3)

    async with held(release):
        stream = opened(source)
        await anext(stream)
        await until(waiting.is_set)
        began = asyncio.get_running_loop().time()
        with capture_logs() as logs:
            await stream.aclose()
        assert asyncio.get_running_loop().time() - began < PATIENCE_S / 2
        assert [(entry["event"], entry["feed"]) for entry in logs] == [
            (LogEvent.THREAD_LEFT_BEHIND, "acme/orders")
        ]
        # The process can end without it.
        assert [thread.daemon for thread in threads()] == [True]
    assert later == [2]


async def test_a_fault_after_the_stop_is_logged_and_trouble_with_the_cut_socket_is_not() -> None:
    waiting = threading.Event()

    def source_with(error: Exception) -> Source:
        def source(context: Context) -> Iterator[Batch]:
            yield batch(1)
            waiting.set()
            context.stopping.wait(PATIENCE_S)
            raise error

        return source

    for error, events in (
        (OSError("shut"), []),
        (SourceUnavailable("shut"), []),
        (KeyError("surprise"), [LogEvent.UNEXPECTED]),
    ):
        waiting.clear()
        with capture_logs() as logs:
            async with aclosing(opened(source_with(error))) as stream:
                await anext(stream)
                await until(waiting.is_set)
        assert [entry["event"] for entry in logs] == events


# -- dialing -------------------------------------------------------------------------------------------


def test_nothing_is_dialed_any_more_for_a_feed_that_has_stopped() -> None:
    guard, stopping = RecordingGuard(), threading.Event()
    stopping.set()
    context = replace(a_context(), guard=guard, stopping=stopping)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with (
            pytest.raises(SourceUnavailable, match="stopped before"),
            dialed("127.0.0.1", port, context=context, timeout_s=5),
        ):
            pytest.fail("it was connected")
    assert not guard.watched


def test_a_dialed_socket_is_guarded_while_it_is_open() -> None:
    context = a_context()
    guard = context.guard
    assert isinstance(guard, RecordingGuard)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with dialed("127.0.0.1", port, context=context, timeout_s=5) as sock:
            assert len(guard.watched) == 1
            assert sock.gettimeout() is None
            guard.cut()
            assert sock.recv(1) == b""
        assert not guard.watched
        assert sock.fileno() == -1
