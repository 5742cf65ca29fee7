"""What is traced of a feed, from its claim to its first commit, and what its log lines say of that."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from feedq.core.model import Feed, FeedKey, FeedSpec
from feedq.telemetry import traces
from feedq.telemetry.traces import FeedTrace
from tests.fakes.sink import IDENTITY
from tests.live.test_runner import Bench, numbered_source
from tests.unit.data_path import AT, DataPath, until

LEAVES_WITHIN_S = 9.0
"""With the end of the interpreter on a busy machine; the SDK alone takes ten."""
FEED = Feed(
    1,
    FeedSpec(name="acme/orders", connector="tcp", source={}, sink={}, tenant="acme", labels={"tier": "gold"}),
    1,
    AT,
    AT,
    IDENTITY,
)


A_FEED = """
from datetime import UTC, datetime
from uuid import UUID
from feedq.core.model import Feed, FeedSpec, Identity
spec = FeedSpec(name="acme/orders", connector="tcp", source={}, sink={})
feed = Feed(1, spec, 1, datetime.now(UTC), datetime.now(UTC), Identity(UUID(int=1), UUID(int=2)))
"""
"""For processes of their own, which load nothing of the tests."""


class Spans:
    """The spans that have ended."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """Where the spans of this process go, once for all: a second provider would be refused."""
    made = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    trace.set_tracer_provider(provider)
    return made


@pytest.fixture
def spans(exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> Spans:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    exporter.clear()
    return Spans(exporter)


def begun(feed: Feed, key: FeedKey) -> FeedTrace:
    trace_of_it = FeedTrace()
    trace_of_it.begin(feed, key)
    return trace_of_it


async def test_an_attempt_that_fails_says_why(spans: Spans) -> None:
    async with numbered_source() as source:
        port = source.port
    with DataPath() as path:
        bench = Bench(path, {"url": f"tcp://127.0.0.1:{port}"})
        bench.start()
        await until(lambda: spans.named("feedq.connect"), "an attempt")
        await bench.stop()
    failed = spans.named("feedq.connect")[0]
    assert failed.status.status_code is StatusCode.ERROR
    assert str(port) in (failed.status.description or "")


async def test_the_trace_of_a_successor_is_not_taken_away_by_the_end_of_its_predecessor(spans: Spans) -> None:
    old = begun(FEED, (1, 7))
    new = begun(replace(FEED, generation=2), (1, 8))
    old.end()
    traces.committed("default", ["acme/orders"], records=1, took_s=0.1)
    (link,) = spans.one("feedq.commit").links
    new.end()
    assert link.context == spans.named("feedq.feed")[1].context


# -- off ---------------------------------------------------------------------------------------------


def run_probe(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: what it has imported, and what it exports to, cannot be undone."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_nothing_of_the_sdk_is_imported_unless_traces_are_asked_for() -> None:
    ran = run_probe(
        "import sys; from feedq.telemetry import traces; from feedq.worker import runner, writer\n"
        f"{A_FEED}\n"
        "traces.set_up()\n"
        "one = traces.FeedTrace(); one.begin(feed, (1, 1)); one.landed(); one.end(); traces.flush()\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry.sdk')], traces._contexts)"
    )
    assert ran.stdout.strip() == "[] {}"


# -- the end -------------------------------------------------------------------------------------------


def test_a_collector_that_does_not_answer_does_not_keep_a_process_that_leaves() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ran = run_probe(
            "import time; from feedq.telemetry import traces\n"
            f"{A_FEED}\n"
            "traces.set_up()\n"
            "for epoch in (1, 2):\n"
            "    one = traces.FeedTrace(); one.begin(feed, (1, epoch)); one.end()\n"
            "    time.sleep(0.1)  # the first is under way, and the second waits for its turn\n"
            "print(time.monotonic()); traces.flush()",
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}",
            OTEL_BSP_SCHEDULE_DELAY="1",
        )
        assert time.monotonic() - float(ran.stdout) < LEAVES_WITHIN_S
