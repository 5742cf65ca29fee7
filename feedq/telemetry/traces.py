"""Traces by OpenTelemetry: from the claim of a feed to its first commit, and how commits went.

::

    feedq.feed     claim ──────────────────────────────────────────────► its first records are committed
      feedq.fence        ├───────┤
      feedq.connect               ├─────────┤                 once per attempt
      feedq.first_commit                     ├──────────────────────────┤
    feedq.commit                                    ├────────┤          a trace of its own, linked to its feeds

A stream lasts for months and a span is exported when it ends, so the span of a feed ends with the first commit;
later log lines about the feed still name its trace.

The code calls OpenTelemetry's API, which does nothing until a provider is set. `set_up` sets the SDK's provider if
the extra ``otel`` is installed and ``OTEL_*`` variables name an exporter; the SDK reads those variables itself and
bounds what waits to be exported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import entry_points
from itertools import islice
from threading import Thread
from time import time_ns
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode

from feedq import __version__
from feedq.core.values import storable
from feedq.telemetry.event_names import LogEvent
from feedq.telemetry.hiding import structlog

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from feedq.core.model import Feed, FeedKey

LINKS_MAX = 32
"""Feeds that the span of a commit is linked to; a commit may hold thousands."""
OTLP_EXPORTERS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
"""What ``otlp`` stands for, by ``OTEL_EXPORTER_OTLP_PROTOCOL``."""
FLUSH_S = 0.5
"""How long a worker that leaves waits for its last spans: a collector that hangs must not keep the process."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_tracer = trace.get_tracer("feedq", __version__)
_contexts: dict[str, SpanContext] = {}
"""The traces of the feeds that run here, by name of the feed."""


def is_configured(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for traces."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    named = environ.get("OTEL_TRACES_EXPORTER", "")
    return named != "none" if named else any(environ.get(name) for name in ENDPOINTS)


def set_up() -> None:
    """Export the traces of this process, if the environment asks for it and no provider is set yet."""
    if not is_configured() or has_provider():
        return
    try:
        trace.set_tracer_provider(_provider())
    except Exception as error:  # noqa: BLE001 -- no reason not to stream: ImportError, or whatever an exporter raises
        hint = "; pip install 'feedq[otel]'" if isinstance(error, ImportError) else ""
        structlog.stdlib.get_logger(__name__).warning(LogEvent.TRACING_OFF, error=f"{error}{hint}")


def has_provider() -> bool:
    """Whether anybody hears of spans."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def flush() -> None:
    """Export the last spans, if that is possible within `FLUSH_S`. Spans made later are lost."""
    shutdown = getattr(trace.get_tracer_provider(), "shutdown", None)
    if shutdown is not None:
        # The SDK's own shutdown waits for a collector as long as an export may take: ten seconds.
        thread = Thread(target=shutdown, name="feedq-traces", daemon=True)
        thread.start()
        thread.join(FLUSH_S)


class FeedTrace:
    """The trace of one claim of a feed. What its task logs, and spans of libraries in it, belong to it."""

    __slots__ = ("_name", "_part", "_whole")

    def __init__(self) -> None:
        self._name = ""
        self._whole: Span = trace.INVALID_SPAN
        self._part: Span | None = None

    def begin(self, feed: Feed, key: FeedKey) -> None:
        """Start the trace, in the task that runs the feed."""
        if not has_provider():
            return  # thousands of feeds begin together, and each span costs, even if nobody hears of it
        spec = feed.spec
        self._name = spec.name
        attributes: dict[str, str | int] = {
            "feedq.feed": spec.name,
            "feedq.tenant": spec.tenant,
            "feedq.connector": spec.connector,
            "feedq.epoch": key[1],
            **{f"feedq.label.{name}": value for name, value in spec.labels.items()},
        }
        self._whole = _tracer.start_span("feedq.feed", attributes=attributes)
        if self._whole.is_recording():
            _contexts[spec.name] = self._whole.get_span_context()
            # Never detached: the context belongs to the task and ends with it.
            context.attach(trace.set_span_in_context(self._whole))

    def fencing(self) -> AbstractContextManager[object]:
        """A span of the block."""
        if not self._whole.is_recording():
            return nullcontext()
        return trace.use_span(self._begin("feedq.fence"), end_on_exit=True)

    def connecting(self) -> None:
        """An attempt to connect begins."""
        self._follow("feedq.connect")

    def connected(self) -> None:
        self._follow("feedq.first_commit")

    def failed(self, error: str) -> None:
        """The attempt has failed; ``error`` is masked."""
        if self._part is not None:
            self._part.set_status(Status(StatusCode.ERROR, storable(error)))
            self._end_part()

    def landed(self) -> None:
        """Records are committed."""
        if self._whole.is_recording():
            self._end_part()
            self._whole.end()

    def end(self) -> None:
        """The feed is no longer here. May be repeated."""
        self.landed()
        if _contexts.get(self._name) == self._whole.get_span_context():
            del _contexts[self._name]

    def _follow(self, name: str) -> None:
        if self._whole.is_recording():
            self._end_part()
            self._part = self._begin(name)

    def _begin(self, name: str) -> Span:
        return _tracer.start_span(name, context=trace.set_span_in_context(self._whole))

    def _end_part(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.end()


def committed(sink: str, feeds: Sequence[str], *, records: int, took_s: float) -> None:
    """Make the span of a commit that has just ended, linked to the traces of its feeds."""
    now = time_ns()
    attributes: dict[str, str | int] = {
        "feedq.sink": sink,
        "feedq.feeds": len(feeds),
        "feedq.records": records,
    }
    links = [Link(found) for found in islice(filter(None, map(_contexts.get, feeds)), LINKS_MAX)]
    _tracer.start_span(
        "feedq.commit", links=links, attributes=attributes, start_time=now - int(took_s * 1e9)
    ).end(now)


def name_trace(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog: name the trace of the current task, or of the feed that a line is about."""
    current: SpanContext = trace.get_current_span().get_span_context()
    found = current if current.is_valid else _contexts.get(str(event.get("feed")))
    if found is not None:
        event["trace_id"], event["span_id"] = f"{found.trace_id:032x}", f"{found.span_id:016x}"
    return event


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
