"""The alerts and dashboards of ``deploy/`` name what is there: metrics, values of labels, and what to do.

`tests/peers/test_prometheus.py` asks a real Prometheus the same of a running fleet.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Set
from datetime import UTC, datetime
from itertools import chain

from feedq.celery.fleet_metrics import UNPLACED_REASONS, FleetReading, fleet_families, leading
from feedq.control.store.fleet_state import FleetState, JobState
from feedq.core.model import Status
from feedq.telemetry.metrics import REGISTRY
from tests import promql
from tests.promql import Series

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EMPTY = FleetReading(FleetState(NOW, NOW, 0.0, None), JobState(0, 0, (), None, 0, 0, 0, None, 0, 0), [], [])
VALUES: dict[tuple[str, str], Set[str]] = {
    ("feedq_feeds", "status"): set(Status),
    ("feedq_feeds_unplaced", "reason"): set(UNPLACED_REASONS),
    ("feedq_workers", "state"): {"serving", "cordoned", "drained", "draining"},
    ("feedq_schedules", "state"): {"active", "paused"},
    ("feedq_job_slots", "state"): {"free", "busy", "stuck"},
}
"""The values of each label that an expression asks for."""


def fleet() -> list[str]:
    return sorted(promql.exported([leading(True), *fleet_families(EMPTY)]))


def known() -> set[str]:
    return promql.exported(REGISTRY.collect()) | set(fleet()) | promql.OTHERS


def expressions() -> list[str]:
    return [*(alert.expr for alert in promql.alerts()), *(q.expr for q in promql.questions())]


def asked() -> list[Series]:
    return list(chain.from_iterable(map(promql.series_in, expressions())))


def test_every_metric_that_is_asked_for_exists() -> None:
    assert {series.name for series in asked()} - known() == set()


def test_every_value_of_a_label_that_is_asked_for_exists() -> None:
    wrong = [
        f"{series.name}{{{label}={value}}}"
        for series in asked()
        for label, values in series.labels
        for value in values
        if value not in VALUES[series.name, label]
    ]
    assert wrong == []


def test_no_metric_of_the_fleet_goes_unseen() -> None:
    assert set(fleet()) - {series.name for series in asked()} == set()


def test_alerts_are_named_once_and_say_what_they_mean() -> None:
    rules = [rule for group in promql.rule_groups() for rule in group["rules"]]
    assert [name for name, count in Counter(rule["alert"] for rule in rules).items() if count > 1] == []
    assert {rule["labels"]["severity"] for rule in rules} == {"critical", "warning", "info"}
    assert [rule["alert"] for rule in rules if not rule["annotations"]["summary"]] == []


def test_what_to_do_about_every_alert_is_documented() -> None:
    page = (promql.ROOT / "docs" / "howto" / "monitor.md").read_text()
    assert set(re.findall(r"^\| `(Feedq\w+)` \|", page, re.MULTILINE)) == {a.name for a in promql.alerts()}
