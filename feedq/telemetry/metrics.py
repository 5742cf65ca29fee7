"""The metrics that feedq exports about itself; ``docs/reference/metrics.md`` is made from them.

A name that is not declared here, or in `feedq.celery.fleet_metrics` for the fleet as a whole, cannot be exported.
"""

from __future__ import annotations

import platform
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import inf
from operator import add
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from feedq import __version__


class GroupHistogram(Collector):
    """A histogram of values that are measured by the thousand. Thread-safe.

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


SHARED = CollectorRegistry()
"""Exported by workers and beats, each about itself."""
REGISTRY = CollectorRegistry()
"""Exported by a worker about itself."""
REGISTRY.register(SHARED)

_gauge = partial(Gauge, registry=REGISTRY)
_counter = partial(Counter, registry=REGISTRY)
_histogram = partial(Histogram, registry=REGISTRY)

BUILD_INFO = Gauge(
    "feedq_build_info", "The release that this process runs; always 1", ["version", "python"], registry=SHARED
)
BUILD_INFO.labels(__version__, platform.python_version()).set(1)
WORKER_FEEDS = _gauge("feedq_worker_feeds", "Feeds held", ["status"])
CAPACITY = _gauge("feedq_capacity", "Maximum number of feeds on this worker")
UTILISATION_RATIO = _gauge("feedq_utilisation_ratio", "Feeds held as a fraction of capacity")
RECORDS = _counter("feedq_records", "Records landed")
BYTES = _counter("feedq_bytes", "Bytes of records landed")
DEAD_LETTERS = _counter("feedq_dead_letters", "Records refused by the sink")
FENCED = _counter("feedq_fenced", "Feeds lost to a newer epoch")
SINK_REWINDS = _counter(
    "feedq_sink_rewinds",
    "Feeds whose sink had lost commits",
)
SOURCE_MISSED = _counter(
    "feedq_source_missed", "Records that a source never delivered, by gaps in its sequence"
)
RECONNECTS = _counter("feedq_reconnects", "Feed connections that broke off")
CONNECTS = _counter("feedq_connects", "Connections to sources opened")
CONNECTS_WAITING = _gauge("feedq_connects_waiting", "Feeds waiting for their turn to connect")
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
    "Longest time for which a feed has had unwritten batches",
)
THROTTLED_SECONDS = _counter("feedq_throttled_seconds", "Seconds for which rate limits held feeds back")
HEARTBEAT_AGE_SECONDS = _gauge("feedq_heartbeat_age_seconds", "Time since the last answered heartbeat")
HEARTBEAT_SECONDS = _histogram("feedq_heartbeat_seconds", "Round trip of a heartbeat")
LOOP_LAG_SECONDS = _gauge("feedq_loop_lag_seconds", "How late the event loop runs a timer")
RECONCILE_SECONDS = Histogram("feedq_reconcile_seconds", "Duration of a reconcile pass", registry=SHARED)
RECONCILED_AT_SECONDS = Gauge(
    "feedq_last_reconcile_timestamp_seconds",
    "Unix time when a pass last finished here; 0: never",
    registry=SHARED,
)
RUNS_FIRED = _counter("feedq_runs_fired", "Runs made by ticks that this worker fired")
MESSAGES_LEFT_OUT = Counter(
    "feedq_messages_left_out",
    "Messages not sent because the broker was down or slow",
    registry=SHARED,
)
RUNS_ENDED = _counter("feedq_runs_ended", "Ended attempts of runs", ["state"])
RUN_WAIT_SECONDS = _histogram(
    "feedq_run_wait_seconds",
    "Time from a run's due time to its start",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600),
)
JOB_SLOTS = _gauge(
    "feedq_job_slots",
    "Job slots: `free`, `busy`, or `stuck` in jobs that ignored their time-out",
    ["state"],
)
