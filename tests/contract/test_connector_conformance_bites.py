"""The conformance kit finds what can be wrong with a connector: a sound one passes, each fault fails a test."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
from pydantic import Field

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.wire.dialing import Dialed, dial_host
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.records.batch import Batch, Records
from feedq.testing import connector_conformance, driver, loopback
from feedq.testing.connector_conformance import ConnectorConformance, Served
from feedq.testing.loopback import Journal, RecordingGuard, serving

READ_BYTES = 64 * 1024


class SoundOptions(ConnectorOptions):
    where: str = Field(description="Where the source listens, `host:port`.")
    max_record_bytes: int = Field(default=2**20, description="A larger record fails the feed.")
    idle_timeout_s: float = Field(default=60.0, description="A silent source is connected to anew.")


class SoundConnector:
    """Lines after a greeting; each is acknowledged by its number once it is committed. With faults on demand."""

    Options: ClassVar[type[ConnectorOptions]] = SoundOptions
    faults: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, options: SoundOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._seq = 0

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        dialed = await self._dial()
        try:
            reader, writer = await asyncio.open_connection(sock=dialed.sock, limit=READ_BYTES)
        except BaseException:
            dialed.close()
            raise
        if "leaves a task" in self.faults:
            # A task that nobody ends.
            self._task = asyncio.ensure_future(asyncio.sleep(3600))
        rest, pending = b"", asyncio.Queue[bytes]()
        if "reads ahead" in self.faults:
            self._reading = asyncio.ensure_future(self._read_ahead(reader, pending))
        try:
            if "connects early" in self.faults:
                self._context.on_connected()
            self._seq = cursor if isinstance(cursor, int) else 0
            writer.write(b"%d\n" % (self._seq - ("resumes early" in self.faults)))
            assert await reader.readexactly(3) == b"hi\n"
            if "connects early" not in self.faults:
                self._context.on_connected()
            if "connects twice" in self.faults:
                self._context.on_connected()
            while data := await self._read(reader, pending):
                *lines, rest = (rest + data).split(b"\n")
                if not lines and len(rest) > self._options.max_record_bytes:
                    self._refuse(rest)
                if lines:
                    batch, oversize = self._batch(lines, writer)
                    if batch.count:
                        yield batch
                    if oversize:
                        raise FeedMisconfigured("a record over source.max_record_bytes")
        except (OSError, EOFError) as error:
            if "keeps fragments" in self.faults and rest:
                yield self._batch([rest], writer)[0]
            raise self._broken_off(error) from error
        finally:
            await self._end(dialed, writer)
        raise self._broken_off(None)

    def _refuse(self, rest: bytes) -> None:
        if "holds what has no end" in self.faults:
            return
        if "lets nobody have a turn" in self.faults:
            # The fault itself: whoever blocks the loop.
            time.sleep(0.6)
        if "raises what it likes" in self.faults:
            raise ValueError("too much")
        said = rest.decode("latin-1") if "quotes the endless record" in self.faults else ""
        raise FeedMisconfigured(f"a record over source.max_record_bytes {said}")

    async def _dial(self) -> Dialed:
        host, _, port = self._options.where.rpartition(":")
        where = f"tcp://{self._options.where}"
        context = self._context
        if "dials unguarded" in self.faults:
            sock = socket.socket()
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
            return Dialed(sock, RecordingGuard())
        return await dial_host(host, int(port), where=where, context=context, timeout_s=10.0)

    async def _read(self, reader: asyncio.StreamReader, pending: asyncio.Queue[bytes]) -> bytes:
        try:
            async with asyncio.timeout(
                None if "never silent" in self.faults else self._options.idle_timeout_s
            ):
                if "reads ahead" in self.faults:
                    return await pending.get()
                return await reader.read(READ_BYTES)
        except TimeoutError:
            raise SourceSilent("nothing received") from None

    async def _read_ahead(self, reader: asyncio.StreamReader, pending: asyncio.Queue[bytes]) -> None:
        data = b"begin"
        while data:
            with suppress(OSError):
                data = await reader.read(READ_BYTES)
            await pending.put(data)

    def _batch(self, lines: list[bytes], writer: asyncio.StreamWriter) -> tuple[Batch, bool]:
        kept = lines
        if "knows no limit" not in self.faults:
            fits = [len(line) <= self._options.max_record_bytes for line in lines]
            kept = lines[: fits.index(False)] if False in fits else lines
        if "drops what came before" in self.faults and len(kept) < len(lines):
            kept = []
        self._seq += len(kept)
        acknowledge = partial(self._acknowledge, writer, self._seq)
        if "acknowledges early" in self.faults:
            acknowledge()
        shown = self._seq - ("cursor behind" in self.faults)
        batch = Records(records=tuple(kept)).batch(
            cursor=shown, received_at=self._context.clock.now(), on_committed=acknowledge
        )
        return batch, len(kept) < len(lines)

    def _acknowledge(self, writer: asyncio.StreamWriter, seq: int) -> None:
        if "acknowledges badly" in self.faults or not writer.is_closing():
            assert not writer.is_closing()
            writer.write(b"%d\n" % seq)

    def _broken_off(self, error: Exception | None) -> Exception:
        if "tells secrets" in self.faults:
            return SourceUnavailable(f"broken off: {self._context.secrets}")
        if "tells nothing" in self.faults:
            return RuntimeError("broken off")
        return SourceUnavailable(f"broken off: {error}")

    async def _end(self, dialed: Dialed, writer: asyncio.StreamWriter) -> None:
        if "closes before it forgets" in self.faults:
            assert isinstance(self._context.guard, RecordingGuard)
            (watched,) = self._context.guard.watched
            with open(os.devnull) as somebody_elses, suppress(AssertionError):
                os.dup2(somebody_elses.fileno(), watched)
                dialed.cut()
        if "stops slowly" in self.faults:
            # More than the second that it has, however long a busy machine takes over that.
            await asyncio.sleep(30)
        if "keeps the socket" not in self.faults:
            writer.transport.abort()
        if "keeps the guard" not in self.faults:
            dialed.cut()


class Numbered(ConnectorConformance):
    """A source that sends what comes after the number it is told; pytest does not collect it by this name."""

    kind = SoundConnector

    async def script(
        self, journal: Journal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        after = int(await reader.readline())
        writer.write(b"hi\n")
        await journal.send_all(writer, lambda _, record: record + b"\n", after=after)

    def options(self, where: str) -> dict[str, Any]:
        return {"where": where, "secrets": {"token": "${env:ACME_TOKEN}"}}


class Acknowledged(Numbered):
    """A source that keeps what is not acknowledged, and knows no cursor."""

    resumes = False
    acknowledges = True

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        journal, acknowledged = Journal(), 0

        async def listen(reader: asyncio.StreamReader, base: int) -> None:
            nonlocal acknowledged
            while line := await reader.readline():
                acknowledged = max(acknowledged, base + int(line))

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # Numbers are counted from the beginning of the connection: nobody keeps a cursor.
            await reader.readline()
            writer.write(b"hi\n")
            listening = asyncio.ensure_future(listen(reader, acknowledged))
            try:
                await journal.send_all(writer, lambda _, record: record + b"\n", after=acknowledged)
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

        async def count() -> int:
            return acknowledged

        async with serving(script) as port:
            yield Served(f"127.0.0.1:{port}", journal.send, count)


class WithoutCursor(SoundConnector):
    """Gives no cursor away, so that only acknowledgements tell the source where it stands."""

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        async with aclosing(super().stream(None)) as batches:
            async for batch in batches:
                yield replace(batch, cursor=None)


class TestSound(Numbered):
    """The connector without a fault."""


class TestSoundThatAcknowledges(Acknowledged):
    """And what it does with a source that waits for acknowledgements."""

    kind = WithoutCursor


FAULTS = {
    "resumes early": "it_resumes_exactly_after_the_cursor_of_any_batch",
    "cursor behind": "it_resumes_exactly_after_the_cursor_of_any_batch",
    "keeps fragments": "records_survive_crumbs_and_a_reset_at_any_byte",
    "connects twice": "records_come_in_order_and_once_and_it_says_once_that_it_is_connected",
    "connects early": "it_is_not_connected_before_the_source_answers_and_stops_without_an_answer",
    "tells secrets": "records_survive_crumbs_and_a_reset_at_any_byte",
    "tells nothing": "an_end_while_it_waits_is_told_whoever_makes_it",
    "dials unguarded": "an_end_while_it_waits_is_told_whoever_makes_it",
    "never silent": "a_source_that_falls_silent_is_told_from_one_that_ended",
    "knows no limit": "a_record_over_the_limit_fails_the_feed_after_everything_before_it",
    "drops what came before": "a_record_over_the_limit_fails_the_feed_after_everything_before_it",
    "holds what has no end": "what_has_no_end_is_refused_in_time_and_in_words",
    "lets nobody have a turn": "what_has_no_end_is_refused_in_time_and_in_words",
    "raises what it likes": "what_has_no_end_is_refused_in_time_and_in_words",
    "quotes the endless record": "what_has_no_end_is_refused_in_time_and_in_words",
    "reads ahead": "it_does_not_read_on_when_it_is_not_pulled",
    "stops slowly": "it_stops_while_it_waits",
    "keeps the socket": "it_stops_while_it_waits",
    "closes before it forgets": "it_stops_while_it_waits",
    "keeps the guard": "it_stops_while_it_waits",
    "leaves a task": "it_stops_while_it_waits",
    "acknowledges early": "what_is_not_committed_is_not_acknowledged_and_sent_again",
    "acknowledges badly": "what_is_not_committed_is_not_acknowledged_and_sent_again",
}


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault often shows by something that never happens."""
    for module in (loopback, driver, connector_conformance):
        monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    monkeypatch.setattr(connector_conformance, "STANDS_STILL_S", 0.5)


@pytest.mark.usefixtures("impatience")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_connector_with_a_fault_is_found_out(fault: str) -> None:
    acknowledges = fault.startswith("acknowledges")
    sound: type[SoundConnector] = WithoutCursor if acknowledges else SoundConnector
    faulty = type("Faulty", (sound,), {"faults": frozenset({fault})})
    suite = type("Suite", (Acknowledged if acknowledges else Numbered,), {"kind": faulty})()
    with pytest.raises((AssertionError, TimeoutError, RuntimeError, ValueError, ExceptionGroup)):
        getattr(suite, f"test_{FAULTS[fault]}")()
    gc.collect()  # what a fault has left behind is not the next test's


def test_tests_of_what_a_connector_lacks_are_taken_out_and_come_back_with_it() -> None:
    name = "test_what_is_not_committed_is_not_acknowledged_and_sent_again"
    assert getattr(Numbered, name) is None
    assert getattr(Acknowledged, name) is getattr(ConnectorConformance, name)
    assert getattr(type("Again", (Acknowledged,), {"acknowledges": False}), name) is None
    assert callable(Numbered.test_it_stops_while_it_waits)
