"""Traces by OpenTelemetry: what happens from the claim of a feed to its first commit, and how commits went.

::

    feedq.feed     claim ──────────────────────────────────────────────► its first records are committed
      feedq.fence        ├───────┤
      feedq.connect               ├─────────┤                 once an attempt
      feedq.first_commit                     ├──────────────────────────┤
    feedq.commit                                    ├────────┤          a trace of its own, linked to its feeds

A stream lasts for months, and a span is exported when it ends: so the span of a feed ends with the first commit,
and what is logged of the feed later still names its trace. Off unless the extra ``otel`` is installed and an
exporter is named by ``OTEL_*`` variables: a feed has `NO_TRACE` then, and nothing of OpenTelemetry is imported.
The variables are those of its specification, read by its SDK: what waits to be exported is bounded there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.metadata import entry_points
from itertools import islice
from threading import Thread
from time import time_ns
from typing import TYPE_CHECKING, Any

import structlog

from feedq import __version__
from feedq.event_names import LogEvent
from feedq.model import Feed, FeedKey

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, SpanContext, Tracer

LINKS_MAX = 32
"""Feeds that the span of a commit is linked to; it may hold thousands."""
OTLP_EXPORTERS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
"""What ``otlp`` stands for, by ``OTEL_EXPORTER_OTLP_PROTOCOL``."""
FLUSH_S = 0.5
"""What a worker that leaves gives its last spans: a collector that does not answer must not keep its process."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_contexts: dict[str, SpanContext] = {}
"""The traces of the feeds that run here, by name; no more than there are feeds."""


def is_configured(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for traces."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    named = environ.get("OTEL_TRACES_EXPORTER", "")
    return named != "none" if named else any(environ.get(name) for name in ENDPOINTS)


class FeedTrace:
    """The trace of one claim of a feed, while nobody traces: does nothing."""

    def fencing(self) -> AbstractContextManager[object]:
        """A span of the block."""
        return _NOTHING

    def connecting(self) -> None:
        """An attempt to connect begins."""

    def connected(self) -> None: ...

    def failed(self, error: str) -> None:
        """The attempt has failed; ``error`` is masked."""

    def landed(self) -> None:
        """Records are committed."""

    def end(self) -> None:
        """The feed is no longer here. May be repeated."""


_NOTHING = nullcontext()
NO_TRACE = FeedTrace()


def begin(feed: Feed, key: FeedKey) -> FeedTrace:
    """The trace of a claim. What the current task logs, and spans that its libraries make, belong to it."""
    ours = tracer()
    return NO_TRACE if ours is None else _RecordedTrace(ours, feed, key)


def committed(sink: str, feeds: Sequence[str], *, records: int, took_s: float) -> None:
    """Make the span of a commit that has just ended. For those who have found that `is_on`."""
    from opentelemetry.trace import Link

    ours = tracer()
    if ours is not None:
        now = time_ns()
        found = (_contexts.get(feed) for feed in feeds)
        links = [Link(context) for context in islice(filter(None, found), LINKS_MAX)]
        attributes: dict[str, str | int] = {
            "feedq.sink": sink,
            "feedq.feeds": len(feeds),
            "feedq.records": records,
        }
        span = ours.start_span(
            "feedq.commit", links=links, attributes=attributes, start_time=now - int(took_s * 1e9)
        )
        span.end(now)


def is_on() -> bool:
    return tracer() is not None


def flush() -> None:
    """Export the last spans, if that can be done within `FLUSH_S`. No others are made afterwards."""
    if _provider.cache_info().currsize:
        # The SDK's own end waits for a collector as long as a span may take: ten seconds.
        thread = Thread(target=_provider().shutdown, name="feedq-traces", daemon=True)
        thread.start()
        thread.join(FLUSH_S)


def name_trace(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog: name the trace of the current task, or of the feed that a line is about."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return event
    context: SpanContext = trace.get_current_span().get_span_context()
    found = context if context.is_valid else _contexts.get(str(event.get("feed")))
    if found is not None:
        event["trace_id"], event["span_id"] = f"{found.trace_id:032x}", f"{found.span_id:016x}"
    return event


class _RecordedTrace(FeedTrace):
    def __init__(self, tracer: Tracer, feed: Feed, key: FeedKey) -> None:
        from opentelemetry import context, trace

        self._tracer, self._feed = tracer, feed.name
        attributes: dict[str, str | int] = {
            "feedq.feed": feed.name,
            "feedq.tenant": feed.spec.tenant,
            "feedq.connector": feed.spec.connector,
            "feedq.epoch": key[1],
            **{f"feedq.label.{name}": value for name, value in feed.spec.labels.items()},
        }
        self._whole = tracer.start_span("feedq.feed", attributes=attributes)
        self._part: Span | None = None
        _contexts[self._feed] = self._whole.get_span_context()
        # Never detached: it is that of the task, and ends with it.
        context.attach(trace.set_span_in_context(self._whole))

    def fencing(self) -> AbstractContextManager[object]:
        from opentelemetry import trace

        span = self._begin("feedq.fence")
        return trace.use_span(span, end_on_exit=True)

    def connecting(self) -> None:
        if self._whole.is_recording():
            self._follow("feedq.connect")

    def connected(self) -> None:
        if self._whole.is_recording():
            self._follow("feedq.first_commit")

    def failed(self, error: str) -> None:
        if self._part is not None:
            from opentelemetry.trace import Status, StatusCode

            self._part.set_status(Status(StatusCode.ERROR, error))
            self._end_part()

    def landed(self) -> None:
        if self._whole.is_recording():
            self._end_part()
            self._whole.end()

    def end(self) -> None:
        self.landed()
        if _contexts.get(self._feed) == self._whole.get_span_context():
            del _contexts[self._feed]

    def _follow(self, name: str) -> None:
        self._end_part()
        self._part = self._begin(name)

    def _begin(self, name: str) -> Span:
        from opentelemetry import trace

        return self._tracer.start_span(name, context=trace.set_span_in_context(self._whole))

    def _end_part(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.end()


@cache
def tracer() -> Tracer | None:
    """What makes the spans of this process; None when it makes none."""
    if not is_configured():
        return None
    try:
        from opentelemetry import trace

        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):  # nobody has set one
            provider = _provider()
            trace.set_tracer_provider(provider)
        return provider.get_tracer("feedq", __version__)
    except Exception as error:  # noqa: BLE001 -- no reason not to stream: ImportError, or whatever an exporter raises
        hint = "; pip install 'feedq[otel]'" if isinstance(error, ImportError) else ""
        structlog.stdlib.get_logger(__name__).warning(LogEvent.TRACING_OFF, error=f"{error}{hint}")
        return None


@cache
def _provider() -> TracerProvider:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create({} if is_named else {"service.name": "feedq"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        provider.add_span_processor(BatchSpanProcessor(_exporter(name.strip())))
    return provider


def _exporter(name: str) -> Any:
    if name == "otlp":
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        name = OTLP_EXPORTERS.get(protocol, protocol)
    found = entry_points(group="opentelemetry_traces_exporter", name=name)
    if not found:
        # The one that the extra brings.
        missing = ImportError if name == OTLP_EXPORTERS["http/protobuf"] else LookupError
        raise missing(f"no exporter {name!r} is installed")
    (exporter, *_) = found
    return exporter.load()()
