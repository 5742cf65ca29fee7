"""Each alert of ``deploy/prometheus/rules.yml`` has data for its cause, and none without.

The causes are made in memory: what is exported is feedq's own, and what that looks at is the test's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
import yaml

from feedq.celery.fleet_metrics import FleetCollector, FleetReading
from feedq.connectors.base import Context, log_gap
from feedq.control.store.feed_listing import StatusCount
from feedq.control.store.fleet_state import FleetState, JobState
from feedq.core.model import Reason, Status, Worker, WorkerState, WorkerView
from feedq.local.process import free_port
from feedq.records.batch import Batch, Records
from feedq.settings import Settings
from feedq.telemetry.logs import LogEvent
from feedq.telemetry.metrics import BUILD_INFO, JOB_SLOTS, SINK_REWINDS
from feedq.telemetry.metrics_port import MetricsServer, open_port
from feedq.worker.metrics import Signs, refresh, serve
from feedq.worker.threads import Outbox
from tests import promql
from tests.cluster import wait_until
from tests.fakes.sink import SinkFile
from tests.peers.conftest import peer_directory
from tests.peers.servers import PeerServer, program
from tests.unit.data_path import DataPath

pytestmark = pytest.mark.timeout(60)

NOW = datetime.now(UTC)
LIMIT_S = 20.0
CALM = Signs(
    heartbeat_age_s=1.0,
    loop_lag_s=0.0,
    worker="w1",
    trusted=True,
    draining=False,
)


def worker(name: str, *, heartbeat_age_s: float = 1.0) -> WorkerView:
    session = Worker(
        uuid4(), name, name, 10, "here", 1, "1", {}, WorkerState.ACTIVE, 1, NOW, NOW, NOW + timedelta(days=1)
    )
    return WorkerView(session, 5, heartbeat_age_s)


HEALTHY = FleetReading(
    FleetState(NOW, NOW, 1.0, None),
    JobState(1, 0, (), None, 0, 0, 0, None, 1, 4),
    [StatusCount(Status.STREAMING, None, 10, 10, 0)],
    [worker("w1"), worker("w2")],
)


def _at_free_port(opened: Callable[[int], MetricsServer | None]) -> tuple[int, MetricsServer]:
    """Another program may have a port that was free a moment ago."""
    for port in (free_port() for _ in range(10)):
        if (server := opened(port)) is not None:
            return port, server
    raise AssertionError("ten ports in a row were taken")


class Staged:
    """A worker's and a beat's metrics with a Prometheus that reads them, and what they are made of."""

    prometheus: Prometheus

    def __init__(self) -> None:
        self.heal()
        fleet = FleetCollector(lambda: self.reading, lambda: self.leads)
        worker_port, served = _at_free_port(lambda port: serve(Settings(metrics_port=port), lambda: None))
        beat_port, beat = _at_free_port(lambda port: open_port(("127.0.0.1", port), fleet, {}))
        self.ports = {"worker": worker_port, "beat": beat_port}
        self._servers = (served, beat)

    def heal(self) -> None:
        self.reading, self.leads = HEALTHY, True
        self.look(CALM)
        JOB_SLOTS.labels("stuck").set(0)
        with contextlib.suppress(KeyError):
            BUILD_INFO.remove("0.0.9", "3.11.0")

    def look(self, signs: Signs) -> None:
        refresh(signs, {})

    def close(self) -> None:
        for server in self._servers:
            server.close()


@pytest.fixture(scope="module")
def stage() -> Iterator[Staged]:
    made = Staged()
    with peer_directory() as directory, Prometheus(directory, made.ports) as made.prometheus:
        yield made
    made.close()


Cause = Callable[[Staged], None]


def reads(**changes: Any) -> Cause:
    def cause(stage: Staged) -> None:
        stage.reading = replace(HEALTHY, **changes)

    return cause


def counts(status: Status, reason: Reason | None = None, feeds: int = 1) -> Cause:
    return reads(tallies=[*HEALTHY.tallies, StatusCount(status, reason, feeds, feeds, 0)])


def jobs(**changes: Any) -> Cause:
    return reads(jobs=replace(HEALTHY.jobs, **changes))


def looks(**changes: Any) -> Cause:
    return lambda stage: stage.look(replace(CALM, **changes))


def loses_the_election(stage: Staged) -> None:
    stage.leads = False


def a_job_is_stuck(stage: Staged) -> None:
    JOB_SLOTS.labels("stuck").set(1)


def another_release_runs(stage: Staged) -> None:
    BUILD_INFO.labels("0.0.9", "3.11.0").set(1)


def the_source_has_let_go(stage: Staged) -> None:
    context = cast("Context", SimpleNamespace(feed="acme/orders", name="acme/orders"))
    log_gap(context, "a stream", "the oldest entry is newer than the cursor", missed=3)


def the_broker_refuses(stage: Staged) -> None:
    def send(_: object) -> None:
        raise ConnectionError("refused")

    outbox: Outbox[int] = Outbox(send, stale_s=60.0, event=LogEvent.DISPATCH_FAILED)
    outbox.put([1])
    outbox.close(timeout_s=LIMIT_S)


def lands(life: Callable[[DataPath], Coroutine[Any, Any, None]], **faults: Any) -> Cause:
    """Batches go through a writer, into a sink with faults."""

    def cause(stage: Staged) -> None:
        with DataPath(SinkFile(**faults)) as path:
            asyncio.run(life(path))

    return cause


def received(record: bytes, *, ago_s: float = 0.0) -> Batch:
    return Records(records=(record,)).batch(
        cursor=1, received_at=datetime.now(UTC) - timedelta(seconds=ago_s)
    )


async def one_late_batch(path: DataPath) -> None:
    queue = path.open_batch_queue((1, 1), "a")
    await queue.put(received(b"1", ago_s=20))
    await queue.join()


async def one_refused_record(path: DataPath) -> None:
    queue = path.open_batch_queue((1, 1), "a")
    await queue.put(received(b"poison"))
    await queue.join()


def a_sink_goes_back(stage: Staged) -> None:
    SINK_REWINDS.inc()


CAUSES: dict[str, Cause] = {
    "FeedqNoElectedBeat": loses_the_election,
    "FeedqReconcileOld": reads(state=FleetState(NOW, NOW, 31.0, None)),
    "FeedqWorkerSilent": reads(workers=[worker("w1"), worker("w2", heartbeat_age_s=16.0)]),
    "FeedqNoWorker": reads(workers=[]),
    "FeedqNoCapacity": counts(Status.WAITING, Reason.NO_CAPACITY),
    "FeedqNoMatch": counts(Status.WAITING, Reason.NO_MATCH),
    "FeedqNoRoomForALoss": counts(Status.STREAMING, feeds=5),
    "FeedqFeedsFailed": counts(Status.FAILED),
    "FeedqFeedsInTrouble": counts(Status.FAILING),
    "FeedqFeedsStalled": counts(Status.STALLED),
    "FeedqFeedsUnmet": reads(unmet={"max_silence": 1}),
    "FeedqRunsLate": jobs(waiting=1, due=1, oldest_due_s=61.0),
    "FeedqTicksNotFired": jobs(overdue_s=11.0),
    "FeedqSchedulesTripped": jobs(tripped=("report",), paused=1),
    "FeedqJobsStuck": a_job_is_stuck,
    "FeedqWorkerCutOff": looks(heartbeat_age_s=4.5),
    "FeedqLoopStuck": looks(loop_lag_s=2.5),
    "FeedqLoopLate": looks(loop_lag_s=0.5),
    "FeedqUnwritten": looks(unwritten_s=31.0),
    "FeedqCommitsSlow": lands(one_late_batch),
    "FeedqDeadLetters": lands(one_refused_record, poison=b"poison"),
    "FeedqSinkWentBack": a_sink_goes_back,
    "FeedqSourceMissed": the_source_has_let_go,
    "FeedqMessagesLeftOut": the_broker_refuses,
    "FeedqTwoReleases": another_release_runs,
}


def test_every_alert_has_a_cause_here() -> None:
    assert CAUSES.keys() == {alert.name for alert in promql.alerts()}


def test_nothing_is_wrong_with_a_fleet_that_is_well(stage: Staged) -> None:
    """Runs first: what has risen is seen for minutes."""
    wait_until(
        lambda: (
            stage.prometheus.query("feedq_beat_leads") == [1]
            and stage.prometheus.query("rate(feedq_records_total[1m])") != []
            and stage.prometheus.alerts_known() >= CAUSES.keys()
        ),
        "both are read twice, and the rules are loaded",
        limit_s=LIMIT_S,
    )
    wrong = [alert.name for alert in promql.alerts() if stage.prometheus.query(alert.expr)]
    assert wrong == []


@pytest.mark.parametrize("alert", promql.alerts(), ids=lambda alert: alert.name)
def test_an_alert_fires_for_its_cause(stage: Staged, alert: promql.Alert) -> None:
    stage.heal()
    wait_until(
        lambda: not stage.prometheus.query(alert.expr), f"{alert.name} is not there yet", limit_s=LIMIT_S
    )
    CAUSES[alert.name](stage)
    wait_until(lambda: stage.prometheus.query(alert.expr), f"{alert.name}: {alert.expr}", limit_s=LIMIT_S)


def test_promtool_accepts_the_rules() -> None:
    checked = subprocess.run(
        [program("promtool"), "check", "rules", "--lint-fatal", str(promql.RULES)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


# -- a Prometheus that reads what a test names -------------------------------------------------------

SCRAPE = "200ms"


class Prometheus(PeerServer):
    """``targets``: the ports of workers and beats, by what they are called here."""

    def __init__(self, directory: Path, targets: Mapping[str, int]) -> None:
        scraped = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}} for name, port in targets.items()
        ]
        config = {
            "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": "1s"},
            "rule_files": [str(promql.RULES)],
            "scrape_configs": [{"job_name": "feedq", "static_configs": scraped}],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        super().__init__(
            "prometheus",
            "--config.file={directory}/prometheus.yml",
            "--storage.tsdb.path={directory}/data",
            "--web.listen-address=127.0.0.1:{port}",
            directory=directory,
            ready=self._is_ready,
        )

    def query(self, expr: str) -> list[float]:
        """The values that an expression has now; none where it has no data."""
        found = self._get("/api/v1/query", query=expr)["data"]["result"]
        return [float(sample["value"][1]) for sample in found]

    def alerts_known(self) -> set[str]:
        """The names of the alerts that it has loaded, each of which it can evaluate."""
        groups = self._get("/api/v1/rules")["data"]["groups"]
        return {rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "ok"}

    def _get(self, path: str, **asked: str) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=2):
                return True
        except OSError:
            return False
