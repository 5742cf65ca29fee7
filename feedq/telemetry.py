"""What feedq says about itself: metrics, and its log. Events have their names in `feedq.event_names`.

A name that is not declared there or here cannot be written, and a test checks that each is documented in
``docs/reference/``. Secrets never get this far: URLs are masked by `mask_url`.
"""

from __future__ import annotations

import logging
import logging.config
import platform
import sys
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from operator import add
from threading import Lock
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from feedq import __version__, tracing
from feedq.errors import PermissionMissing
from feedq.event_names import EventKind as EventKind
from feedq.event_names import LogEvent as LogEvent
from feedq.passwords import mask_url as mask_url
from feedq.settings import Settings


class GroupHistogram(Collector):
    """A histogram of what is measured of thousands at once. Thread-safe.

    prometheus_client's own takes them one by one, and for each a tenth of the time that it takes to land a record.
    """

    def __init__(
        self, name: str, documentation: str, *, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name, self._documentation = name, documentation
        self._bounds = [*buckets, inf]
        self._counts = [0] * len(self._bounds)
        """How many were at most that, hence those of the smaller bounds, too."""
        self._sum = 0.0
        self._lock = Lock()
        registry.register(self)

    def observe_all(self, amounts: Iterable[float]) -> None:
        ordered = sorted(amounts)
        counts = [bisect_right(ordered, bound) for bound in self._bounds]
        with self._lock:
            self._counts = list(map(add, self._counts, counts))
            self._sum += sum(ordered)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            counts, total = self._counts, self._sum
        names = [*map(str, map(float, self._bounds[:-1])), "+Inf"]
        buckets = [(name, float(count)) for name, count in zip(names, counts, strict=True)]
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=total)


class OldName(Collector):
    """A metric under the name that it had in the release before, too: gone in the next one."""

    def __init__(self, name: str, metric: Collector, *, registry: CollectorRegistry) -> None:
        self._name, self._metric = name, metric
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        for family in self._metric.collect():
            old = Metric(self._name, f"Old name of {family.name}, for one release", family.type)
            for sample in family.samples:
                old.add_sample(self._name, sample.labels, sample.value)
            yield old


SHARED = CollectorRegistry()
"""What workers and beats say alike of themselves."""
REGISTRY = CollectorRegistry()
"""What a worker says of itself."""
REGISTRY.register(SHARED)

_gauge = partial(Gauge, registry=REGISTRY)
_counter = partial(Counter, registry=REGISTRY)
_histogram = partial(Histogram, registry=REGISTRY)

BUILD_INFO = Gauge(
    "feedq_build_info", "The release that this process runs: always 1", ["version", "python"], registry=SHARED
)
BUILD_INFO.labels(__version__, platform.python_version()).set(1)
WORKER_FEEDS = _gauge("feedq_worker_feeds", "Feeds held by this worker, by status", ["status"])
FEEDS_BEFORE = OldName("feedq_feeds", WORKER_FEEDS, registry=REGISTRY)
CAPACITY = _gauge("feedq_capacity", "Feeds that this worker holds at most")
UTILISATION_RATIO = _gauge(
    "feedq_utilisation_ratio", "Feeds that this worker holds, as a part of its capacity"
)
UTILISATION_BEFORE = OldName("feedq_utilisation", UTILISATION_RATIO, registry=REGISTRY)
RECORDS = _counter("feedq_records", "Records landed by this worker")
BYTES = _counter("feedq_bytes", "Bytes of records landed by this worker")
DEAD_LETTERS = _counter("feedq_dead_letters", "Records refused by the sink")
FENCED = _counter("feedq_fenced", "Feeds lost to a newer epoch")
SINK_REWINDS = _counter(
    "feedq_sink_rewinds",
    "Feeds whose checkpoint was not the one that was left in the sink: it has lost commits",
)
SOURCE_MISSED = _counter(
    "feedq_source_missed", "Records that a source had and never gave, as the gaps in its sequence tell"
)
RECONNECTS = _counter("feedq_reconnects", "Connections of feeds that broke off")
CONNECTS = _counter("feedq_connects", "Connections to sources begun by this worker")
CONNECTS_WAITING = _gauge("feedq_connects_waiting", "Feeds that wait for their turn to connect")
COMMIT_SECONDS = _histogram("feedq_commit_seconds", "Duration of a group commit")
COMMIT_DELAY_SECONDS = GroupHistogram(
    "feedq_commit_delay_seconds",
    "From receipt of a batch to its commit",
    # Fine around the flush interval, and up to outages of the sink.
    buckets=(0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30, 60, 300),
    registry=REGISTRY,
)
INFLIGHT_BYTES = _gauge("feedq_inflight_bytes", "Bytes received and not yet committed")
UNWRITTEN_SECONDS = _gauge(
    "feedq_unwritten_seconds",
    "Since a feed that has batches to be written last had any written; of the feed that waits longest",
)
THROTTLED_SECONDS = _counter(
    "feedq_throttled_seconds", "Seconds for which feeds were held back by rate limits"
)
HEARTBEAT_AGE_SECONDS = _gauge(
    "feedq_heartbeat_age_seconds", "Since the last heartbeat that the database answered"
)
HEARTBEAT_SECONDS = _histogram("feedq_heartbeat_seconds", "Round trip of a heartbeat")
LOOP_LAG_SECONDS = _gauge("feedq_loop_lag_seconds", "How late the event loop runs a timer")
RECONCILE_SECONDS = Histogram("feedq_reconcile_seconds", "Duration of a reconcile pass", registry=SHARED)
RECONCILED_AT_SECONDS = Gauge(
    "feedq_last_reconcile_timestamp_seconds",
    "When a pass last finished here, as Unix time; 0: never",
    registry=SHARED,
)
RECONCILED_AT_BEFORE = OldName("feedq_reconciled_at_seconds", RECONCILED_AT_SECONDS, registry=REGISTRY)
FEEDS_UNPLACED = _gauge(
    "feedq_feeds_unplaced",
    "Feeds of the fleet without a worker, by reason; said by those who ran a pass lately, take the maximum",
    ["reason"],
)
RUNS_FIRED = _counter("feedq_runs_fired", "Runs that came due, of ticks that this worker fired")
MESSAGES_LEFT_OUT = Counter(
    "feedq_messages_left_out",
    "Messages that this process did not send, because the broker is away or too slow",
    registry=SHARED,
)
HINTS_SENT = _counter("feedq_hints_sent", "Messages sent about runs that are due")
RUNS_ENDED = _counter("feedq_runs_ended", "Attempts of runs that ended on this worker, by how", ["state"])
RUN_WAIT_SECONDS = _histogram(
    "feedq_run_wait_seconds",
    "From the moment a run fell due to its start",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600),
)
JOB_SLOTS = _gauge(
    "feedq_job_slots",
    "Job slots of this worker: `free`, `busy`, and threads of jobs that did not heed their end, `stuck`",
    ["state"],
)


def database_event(error: Exception) -> LogEvent:
    """What to log when the control database could not be used."""
    return LogEvent.DATABASE_REFUSES if isinstance(error, PermissionMissing) else LogEvent.DATABASE_AWAY


def log(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module; call it with `LogEvent` values and keyword fields."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


class _WithoutTasks(logging.Filter):
    """Drops what Celery logs of some tasks' comings and goings; their errors pass."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = frozenset(names)

    def filter(self, record: logging.LogRecord) -> bool:
        data = getattr(record, "data", None)
        return not (
            record.levelno <= logging.INFO and isinstance(data, dict) and data.get("name") in self._names
        )


def configure_logging(settings: Settings, *, quiet_tasks: Collection[str] = ()) -> None:
    """Send feedq's and Celery's log through one formatter to standard error, passwords masked.

    ``quiet_tasks`` say themselves what they do: Celery's two lines about each run would only be volume.
    """
    shared: list[Any] = [
        # What is bound while the code of a job runs: also to the lines that it writes by itself.
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        *([tracing.name_trace] if tracing.is_configured() else []),
        _mask,
    ]
    renderer = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False)
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        # What is below the level costs a call and no more: a feed has several such lines whenever it connects.
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _mask, renderer],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    if settings.log_level != "DEBUG":
        for name in ("celery.worker.strategy", "celery.app.trace"):
            logging.getLogger(name).addFilter(_WithoutTasks(quiet_tasks))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)


def _mask(_logger: Any, _method: str, event: Any) -> Any:
    return {key: mask_url(value) if isinstance(value, str) else value for key, value in event.items()}


# Until `configure_logging` says more: warnings only, and none on standard output, where commands answer.
structlog.configure(
    processors=[structlog.stdlib.add_log_level, _mask, structlog.dev.ConsoleRenderer(colors=False)],
    logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    wrapper_class=structlog.make_filtering_bound_logger("WARNING"),
)
