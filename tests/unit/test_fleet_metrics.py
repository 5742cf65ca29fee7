"""What the elected beat says of the fleet, from one reading of the control database."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry, Metric

from feedq.celery import fleet_metrics
from feedq.celery.fleet_metrics import READ_EVERY_S, FleetCollector, FleetReading, fleet_families
from feedq.control.store.feed_listing import StatusCount
from feedq.control.store.fleet_state import FleetState, JobState
from feedq.core.model import Reason, Status
from feedq.errors import Unavailable

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
READING = FleetReading(
    FleetState(NOW, NOW - timedelta(seconds=7), 7.0, None),
    JobState(
        active=3, paused=2, tripped=("a",), overdue_s=4.0, running=5, waiting=9, due=6, oldest_due_s=12.0,
        workers=1, slots=4,
    ),
    [
        StatusCount(Status.STREAMING, None, 10, 10, 1000, refused=2),
        StatusCount(Status.WAITING, Reason.NO_MATCH, 3, 3, 0),
        StatusCount(Status.FAILED, Reason.FAILED, 1, 0, 0, refused=1),
    ],
    [],
)  # fmt: skip


def samples(families: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    """Values by name and label values."""
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_feeds_are_counted_by_status_and_those_without_a_worker_by_reason() -> None:
    said = samples(fleet_families(READING))
    counted = {status.value: said["feedq_feeds", status.value] for status in Status}
    assert counted == dict.fromkeys(counted, 0) | {"streaming": 10, "waiting": 3, "failed": 1}
    assert said["feedq_feeds_unplaced", "no_match"] == 3
    assert said["feedq_feeds_unplaced", "no_capacity"] == 0
    assert said["feedq_feeds_dead_lettering",] == 3


class Port:
    """A beat's metrics, whose reading and clock a test has in hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.leads, self.readings, self.is_away = 1000.0, True, 0, False
        monkeypatch.setattr(fleet_metrics, "monotonic", lambda: self.now)
        self.registry = CollectorRegistry()
        self.registry.register(FleetCollector(self.read, lambda: self.leads))

    def read(self) -> FleetReading:
        self.readings += 1
        if self.is_away:
            raise Unavailable("the control database cannot be reached")
        return READING

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Port:
    return Port(monkeypatch)


def test_scrapes_within_a_moment_share_one_reading(port: Port) -> None:
    port.readings = 0
    port.now += READ_EVERY_S
    assert [port.value("feedq_runs_late") for _ in range(3)] == [6, 6, 6]
    assert port.readings == 1
    port.now += READ_EVERY_S
    assert port.value("feedq_runs_late") == 6
    assert port.readings == 2


def test_a_beat_that_does_not_lead_asks_nothing_and_says_nothing_of_the_fleet(port: Port) -> None:
    port.leads, port.readings = False, 0
    port.now += READ_EVERY_S
    assert port.value("feedq_beat_leads") == 0
    assert port.value("feedq_runs_late") is None
    assert port.readings == 0
    assert port.value("feedq_reconcile_seconds_count") is not None


def test_what_cannot_be_read_is_not_told_from_memory(port: Port) -> None:
    assert port.value("feedq_beat_leads") == 1
    port.is_away = True
    port.now += READ_EVERY_S
    assert port.value("feedq_beat_leads") == 0
    assert port.value("feedq_feeds", status="streaming") is None
