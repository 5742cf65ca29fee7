"""Jobs on a schedule, on real workers: what becomes of each kind of end, and of the ticks of plain beats."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedq.control.store.grants import Role
from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.core.schedule.model import RunState
from feedq.core.schedule.spec import Overlap, Semantics
from tests import jobs_under_test
from tests.cluster import Cluster, wait_until
from tests.node import Node
from tests.schedules import never

pytestmark = pytest.mark.timeout(150)

LIMIT_S = 30.0
IMPORTS = {"FEEDQ_IMPORTS": "tests.jobs_under_test"}


@pytest.fixture
def cluster(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[Cluster]:
    with Cluster(tmp_path, database_url=database_url, broker_url=broker_url, env=IMPORTS) as made:
        made.make(jobs_under_test.TABLE)
        yield made


def effects(cluster: Cluster, schedule: str, what: str | None = None) -> list[dict[str, Any]]:
    rows = cluster.sql("SELECT * FROM effect WHERE schedule = %s ORDER BY id", (schedule,))
    return [row for row in rows if what is None or row["what"] == what]


def runs(cluster: Cluster, schedule: str) -> list[dict[str, Any]]:
    sql = "SELECT r.* FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id WHERE s.name = %s"
    return cluster.sql(f"{sql} ORDER BY r.id", (schedule,))


def wait_state(cluster: Cluster, schedule: str, *states: RunState) -> dict[str, Any]:
    """The newest run of the schedule, once it is in one of these states."""
    wait_until(
        lambda: [row for row in runs(cluster, schedule)[-1:] if row["state"] in states],
        lambda: f"{schedule} {states}: {runs(cluster, schedule)}\n" + logs(cluster),
    )
    return runs(cluster, schedule)[-1]


def wait_effect(cluster: Cluster, schedule: str, what: str) -> dict[str, Any]:
    wait_until(lambda: effects(cluster, schedule, what), lambda: f"{schedule}: {what}\n" + logs(cluster))
    return effects(cluster, schedule, what)[-1]


def logs(cluster: Cluster) -> str:
    return "\n".join(f"--- {name}\n{node.text()[-3000:]}" for name, node in cluster.workers.items())


def test_a_job_that_does_not_end_in_time_ends_with_its_worker(
    cluster: Cluster, schedules: ScheduleStore
) -> None:
    node = cluster.add_worker("w1", env={"FEEDQ_JOB_DRAIN_S": "1"})
    ends = {Semantics.AT_MOST_ONCE: RunState.LOST, Semantics.AT_LEAST_ONCE: RunState.SUCCEEDED}
    for semantics in ends:
        schedules.add(never(semantics, task="tests.slow", args=[10.0], semantics=semantics))
        schedules.trigger(semantics)
    for semantics in ends:
        wait_effect(cluster, semantics, "begun")
    node.signal(signal.SIGTERM)
    assert node.wait(LIMIT_S) == 0, node.text()[-4000:]
    cluster.add_worker("w2")
    for semantics, state in ends.items():
        wait_state(cluster, semantics, state)
        assert len(effects(cluster, semantics, "begun")) == (2 if state is RunState.SUCCEEDED else 1)


def test_a_worker_of_the_queue_jobs_runs_jobs_and_holds_no_feeds(
    cluster: Cluster, schedules: ScheduleStore
) -> None:
    cluster.add_worker("w1", "-Q", "jobs", capacity=3)
    (row,) = cluster.sql("SELECT capacity, job_slots FROM feedq.worker WHERE state = 'active'")
    assert row == {"capacity": 0, "job_slots": 3}
    schedules.add(never("slow", task="tests.slow", args=[2.0], overlap=Overlap.ALLOW_ALL))
    for _ in range(4):
        schedules.trigger("slow")
    wait_until(lambda: len(effects(cluster, "slow", "ended")) == 4, lambda: logs(cluster))
    begun, ended = ([row["at"] for row in effects(cluster, "slow", what)] for what in ("begun", "ended"))
    assert begun[3] > ended[0], "the fourth waits for a slot"


BEAT_SCHEDULE = """
import os
from datetime import UTC, datetime, timedelta
from celery import Celery

SKEW = timedelta(seconds=float(os.environ["SKEW_S"]))
Celery.now = lambda app: datetime.now(UTC) + SKEW

beat_schedule = {
    "close": {
        "task": "tests.note",
        "schedule": 1.0,
        "kwargs": {"what": "closed"},
        "options": {"feedq_once": True},
    },
}
"""


def test_two_plain_beats_whose_clocks_differ_double_nothing(cluster: Cluster) -> None:
    cluster.add_worker("w1")
    (cluster.directory / "beat_schedule.py").write_text(BEAT_SCHEDULE)
    for name, skew_s in (("b1", "0"), ("b2", "130")):
        state = cluster.directory / f"{name}.state"
        argv = [sys.executable, "-m", "celery", "-A", "feedq", "beat", "-s", str(state), "--pidfile="]
        cluster.beats[name] = Node(
            name,
            [*argv, "-S", "celery.beat.PersistentScheduler"],
            env={**cluster.env, **cluster.as_role(Role.BEAT), "SKEW_S": skew_s},
            cwd=cluster.directory,
            log=cluster.directory / f"{name}.log",
        )
        cluster.beats[name].start()

    def sent(beat: Node) -> int:
        return beat.text().count("Sending due task close")

    wait_until(
        lambda: all(sent(beat) >= 3 for beat in cluster.beats.values()),
        lambda: "\n".join(beat.text()[-3000:] for beat in cluster.beats.values()),
    )
    for beat in cluster.beats.values():
        beat.end(grace_s=5)
    wait_until(
        lambda: all(row["ended_at"] for row in runs(cluster, "beat:close")),
        lambda: f"all have run: {runs(cluster, 'beat:close')}",
    )
    rows = runs(cluster, "beat:close")
    assert {row["kind"] for row in rows} == {"beat"}
    ticks = [row["tick_at"] for row in rows]
    assert len(set(ticks)) == len(ticks)
    # Both beats have sent at least three times, the same ticks: once each.
    assert len(ticks) < sum(sent(beat) for beat in cluster.beats.values())
    assert all(tick.microsecond == 0 for tick in ticks)
    done = Counter(row["key"] for row in effects(cluster, "beat:close", "closed"))
    assert done == {row["key"]: 1 for row in rows}
    said = "".join(beat.text() for beat in cluster.beats.values())
    assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:4_000]


def test_runs_wait_for_a_worker_that_knows_their_task(cluster: Cluster, schedules: ScheduleStore) -> None:
    """A rolling deploy: the worker without the module claims none of its runs, and fails none."""

    def said() -> tuple[str, str]:
        checks = json.loads(cluster.run("doctor", "--json").stdout)["checks"]
        ((level, detail),) = [(c["level"], c["detail"]) for c in checks if c["name"] == "tasks"]
        return level, detail

    cluster.add_worker("old", env={"FEEDQ_IMPORTS": ""})
    warned = cluster.run_apply(schedules=[{"name": "note", "task": "tests.note", "every": "1s"}])
    assert warned.returncode == 0
    assert "Warning: schedule note: no worker knows task tests.note: its runs wait" in warned.stderr
    wait_until(lambda: runs(cluster, "note"), "it is fired")
    level, detail = said()
    assert level == "FAIL"
    assert detail.startswith("schedule note: no worker knows task tests.note")
    cluster.add_worker("new")
    wait_until(
        # The old one is the first to be offered half of the ticks, so others fall due while one waits.
        lambda: "succeeded" in {row["state"] for row in runs(cluster, "note")},
        "the new worker runs it",
    )
    level, detail = said()
    assert (level, detail) == (
        "ok",
        "1 task of schedules, each known to a worker, 1 of them on some workers only",
    )
    schedules.pause("note")
    states = {row["state"] for row in runs(cluster, "note")}
    assert states <= {"succeeded", "buffered", "waiting", "running", "skipped_overlap"}
