"""What the elected beat exports about the whole fleet.

It is read from the control database when somebody asks for it, by the thread that answers: it holds while every
worker is stuck. Only the elected beat says it, so that sums over all beats are right; the others say that they do
not lead. While the database cannot be read nothing is said of the fleet: `feedq_beat_leads` falls to 0 then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from feedq.control.store.feed_listing import StatusCount
from feedq.control.store.fleet_state import FleetState, JobState
from feedq.control.store.postgresql import PostgresStore
from feedq.core.expectations import Expectation
from feedq.core.model import Reason, Status, WorkerView
from feedq.errors import Unavailable
from feedq.settings import Settings
from feedq.telemetry.logs import LogEvent, database_event, log
from feedq.telemetry.metrics import SHARED
from feedq.telemetry.metrics_port import MetricsServer, Verdict, open_port
from feedq.verbs.diagnosis.fleet_checks import Overview, summary

READ_EVERY_S = 1.0
"""Scrapes within this share one reading."""
READ_SHARE = 20
"""Reading takes no more than one part in this many of the time: to count a hundred thousand feeds takes the
database a while."""
UNPLACED_REASONS = (
    *(Reason.NO_CAPACITY, Reason.NO_MATCH, Reason.SETTLING),
    *(Reason.BACKOFF, Reason.FAILED, Reason.HELD, Reason.PAUSED),
)

logger = log(__name__)


@dataclass(frozen=True, slots=True)
class FleetReading:
    """The fleet at one moment."""

    state: FleetState
    jobs: JobState
    tallies: Sequence[StatusCount]
    workers: Sequence[WorkerView]
    unmet: Mapping[str, int] = field(default_factory=dict)
    """Feeds that are not as expected, by what is unmet."""


def read(store: PostgresStore) -> FleetReading:
    """Raises `Unavailable`."""
    return FleetReading(
        store.fleet_state(),
        store.job_state(),
        store.listing.tallies(),
        store.workers.views(),
        store.expectations.unmet(),
    )


class FleetCollector(Collector):
    """Collects the metrics of the fleet while this beat leads. Thread-safe."""

    def __init__(self, read: Callable[[], FleetReading], leads: Callable[[], bool]) -> None:
        self._read, self._leads = read, leads
        self._lock = Lock()
        self._reading: FleetReading | None = None
        self._again_at = float("-inf")

    def collect(self) -> Iterator[Metric]:
        yield from SHARED.collect()
        reading = self._fresh() if self._leads() else None
        yield leading(reading is not None)
        if reading is not None:
            yield from fleet_families(reading)

    def _fresh(self) -> FleetReading | None:
        with self._lock:
            if (began := monotonic()) >= self._again_at:
                try:
                    self._reading = self._read()
                except Unavailable as error:
                    logger.warning(database_event(error), where="metrics", error=str(error))
                    self._reading = None
                except Exception as error:  # one that a scraper must not be the only one to see
                    logger.error(LogEvent.UNEXPECTED, where="metrics", exc_info=error)
                    self._reading = None
                ended = monotonic()
                self._again_at = ended + max(READ_EVERY_S, READ_SHARE * (ended - began))
            return self._reading


def serve_beat(
    s: Settings, store: Callable[[], PostgresStore], *, leads: Callable[[], bool], runs: Callable[[], bool]
) -> MetricsServer | None:
    """Open the port that the settings name for beats. ``runs``: whether the beat takes part in the election."""
    collector = FleetCollector(lambda: read(store()), leads)

    def check() -> Verdict:
        if not runs():
            return Verdict(False, "the thread of the election has ended")
        return Verdict(True, "elected" if leads() else "stands by")

    checks = {"/healthz": check, "/readyz": check}
    return open_port((s.metrics_host, s.beat_metrics_port), collector, checks)


def leading(leads: bool) -> Metric:
    return GaugeMetricFamily(
        "feedq_beat_leads", "1 if this beat is elected and can read the fleet's state", value=float(leads)
    )


def fleet_families(reading: FleetReading) -> Iterator[Metric]:
    """The metrics of the fleet as a whole."""
    fleet = summary(reading.tallies, reading.workers)
    for label, name, about, values in _numbers_by(reading, fleet):
        family = GaugeMetricFamily(name, about, labels=[label])
        for key, number in values.items():
            family.add_metric([key], number)
        yield family
    for name, about, value in _numbers(reading, fleet):
        if value is not None:
            yield GaugeMetricFamily(name, about, value=value)


def _numbers(reading: FleetReading, fleet: Overview) -> Iterator[tuple[str, str, float | None]]:
    """Name, documentation and value of each metric without a label; None: there is nothing to say."""
    jobs = reading.jobs
    about = "Feeds with a dead letter from the last day"
    yield "feedq_feeds_dead_lettering", about, sum(tally.refused for tally in reading.tallies)
    yield "feedq_fleet_capacity", "Maximum number of feeds on all serving workers", fleet.capacity
    about = "Feeds held as a fraction of that capacity"
    yield "feedq_fleet_utilisation_ratio", about, fleet.utilisation or 0.0
    about = "Feeds without a place if the worker hardest to replace were lost"
    yield "feedq_feeds_lacking_after_loss", about, fleet.lacking_after_loss
    about = "Age of the oldest last heartbeat of a worker; 0: no worker"
    yield (
        "feedq_oldest_heartbeat_seconds",
        about,
        max((w.heartbeat_age_s for w in reading.workers), default=0.0),
    )
    about = "Time since a reconcile pass last finished"
    yield "feedq_reconcile_age_seconds", about, reading.state.pass_age_s
    yield "feedq_schedules_tripped", "Schedules paused by repeated failures", len(jobs.tripped)
    about = "How late the first unfired tick is; 0: none"
    yield "feedq_schedule_overdue_seconds", about, jobs.overdue_s or 0.0
    yield "feedq_runs_late", "Runs due and not started", jobs.due
    about = "How long the first of them has been due; 0: none"
    yield "feedq_run_late_seconds", about, jobs.oldest_due_s or 0.0


def _numbers_by(
    reading: FleetReading, fleet: Overview
) -> Iterator[tuple[str, str, str, Mapping[str, float]]]:
    """Label, name, documentation and values of each metric with a label."""
    jobs = reading.jobs
    by_status = {status.value: fleet.by_status.get(status, 0) for status in Status}
    yield "status", "feedq_feeds", "Feeds", by_status
    waiting = {reason.value: fleet.waiting.get(reason, 0) for reason in UNPLACED_REASONS}
    yield "reason", "feedq_feeds_unplaced", "Feeds without a worker", waiting
    unmet = {kind.value: reading.unmet.get(kind, 0) for kind in Expectation}
    yield "expectation", "feedq_feeds_unmet", "Feeds that fail an expectation", unmet
    workers = {state: getattr(fleet, state) for state in ("serving", "cordoned", "drained", "draining")}
    yield "state", "feedq_workers", "Workers", workers
    schedules = {"active": jobs.active, "paused": jobs.paused}
    yield "state", "feedq_schedules", "Schedules", schedules
    yield "state", "feedq_runs", "Runs", {"waiting": jobs.waiting, "running": jobs.running}
