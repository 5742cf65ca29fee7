"""`feedq schedule`, and `apply`, `status` and `doctor` where schedules come in, on a real control database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from threading import Thread
from time import monotonic, sleep
from typing import Any

import orjson
import pytest

from feedq.control.store import migrate
from feedq.core.schedule.model import Finish, Offer, RunState
from feedq.verbs.diagnosis.schedule_checks import job_checks
from tests.contract.jobs_harness import JobsHarness
from tests.contract.shell import Shell, opened_shell

pytestmark = pytest.mark.servers

MANIFEST = """
schedules:
  - name: acme/cleanup
    cron: "H 2 * * *"
    zone: Europe/Berlin
    task: acme.jobs.cleanup
    args: [1, {deep: [2.5, null]}]
    kwargs: {days: 30, filter: {}}
    semantics: transactional
    timeout: none
    retries: {limit: 3, first: 10s}
    queue: reports
    priority: -7
    jitter: 90s
    start_deadline: 10m
    overlap: buffer_all
    catch_up: {policy: all, window: 2d, max: 9}
    resume: catch_up
    pause_on_failure: 1
  - {name: acme/poll, every: 1h, task: acme.jobs.poll}
  - {name: acme/once, at: 2099-12-01T08:00, zone: Europe/Berlin, task: acme.jobs.once, paused: true}
queues:
  - {name: reports, rate_per_s: 2, burst: 3, concurrency: 4}
"""
POLL = "acme/poll"
PATIENCE_S = 30.0


@pytest.fixture
def shell(database_url: str, broker_url: str) -> Iterator[Shell]:
    migrate.upgrade(database_url)
    with opened_shell(database_url, broker_url) as opened:
        yield opened


@pytest.fixture
def harness(database_url: str, shell: Shell) -> Iterator[JobsHarness]:
    """The same database, from the side of workers; with the schedules of the manifest."""
    made = JobsHarness(database_url)
    shell.ok("apply", "-f", "-", given=MANIFEST)
    yield made
    made.close()


def ended(harness: JobsHarness, state: RunState, *, reason: str | None = None) -> None:
    """A worker takes what waits, and it ends like this."""
    worker = harness.job_worker(f"w{harness.now().timestamp()}")
    runs = harness.store.jobs.runs
    granted = runs.claim(Offer(worker.id, 4, range(256), 0.0)).runs
    assert granted
    finishes = [Finish(run.id, run.fence, state, reason) for run in granted]
    assert runs.finish(worker.id, finishes) == [run.id for run in granted]


def row(shell: Shell, name: str) -> Any:
    (found,) = shell.json("schedule", "list", "--prefix", name)
    return found


# -- declaring ---------------------------------------------------------------------------------------


def test_a_manifest_is_applied_exported_and_applied_again(shell: Shell) -> None:
    report = shell.json("apply", "-f", "-", given=MANIFEST)
    assert (report["added"], report["unchanged"]) == (4, 0)
    assert shell.json("apply", "-f", "-", given=MANIFEST)["unchanged"] == 4
    exported = shell.ok("schedule", "export")
    again = shell.json("apply", "-f", "-", "--prune", given=exported)
    assert (again["changes"], again["unchanged"]) == ([], 4)
    pruned = shell.json("apply", "-f", "-", "--prune", "--yes", given="schedules: []\nqueues: []\n")
    assert pruned["removed"] == 4
    assert shell.json("schedule", "list") == []


def test_a_schedule_is_added_edited_shown_and_removed(shell: Shell) -> None:
    shell.ok("schedule", "add", "a", "--task", "t", "--cron", "0 2 * * *", "--arg", "days=30")
    assert "exists already" in shell.run("schedule", "add", "a", "--task", "t", "--every", "1m").stderr
    assert shell.json("schedule", "edit", "a", "--every", "10m", "--arg", "days=7")[0]["result"] == "edited"
    assert shell.json("schedule", "edit", "a", "--every", "600")[0]["result"] == "unchanged"
    shown = shell.json("schedule", "show", "a")
    assert (shown["generation"], shown["timing"]) == (2, {"every_s": 600.0})
    assert shown["job"]["kwargs"] == {"days": 7}
    (tick,) = shell.json("schedule", "next", "a", "--count", "1")["ticks"]
    assert datetime.fromisoformat(tick["tick_at"]) == datetime.fromisoformat(shown["next_tick_at"])
    shell.ok("schedule", "remove", "a", "--yes")
    assert shell.run("schedule", "show", "a").exit_code == 2
    shell.ok("schedule", "add", "a", "--task", "t", "--every", "1m")


def test_a_schedule_declared_as_paused_is_resumed_by_hand_or_by_the_manifest(shell: Shell) -> None:
    shell.ok("apply", "-f", "-", given=MANIFEST)
    assert row(shell, "acme/once")["state"] == "paused"
    shell.ok("apply", "-f", "-", given=MANIFEST.replace("paused: true", "paused: false"))
    assert row(shell, "acme/once")["state"] == "active"
    shell.ok("schedule", "pause", POLL, "--for", "1h", "--reason", "maintenance")
    assert shell.json("apply", "-f", "-", given=MANIFEST)["changed"] == 1
    paused = row(shell, POLL)
    assert (paused["state"], paused["pause_reason"]) == ("paused", "maintenance")
    left = datetime.fromisoformat(paused["paused_until"]) - datetime.now(UTC)
    assert timedelta(minutes=50) < left < timedelta(minutes=70)
    shell.ok("schedule", "resume", POLL)
    assert row(shell, POLL)["state"] == "active"


def test_an_edit_does_not_pause_what_was_resumed(shell: Shell) -> None:
    shell.ok("schedule", "add", "a", "--task", "t", "--every", "1m", "--paused")
    shell.ok("schedule", "resume", "a")
    shell.ok("schedule", "edit", "a", "--priority", "5")
    assert row(shell, "a")["state"] == "active"


# -- runs --------------------------------------------------------------------------------------------


def test_a_trigger_is_run_and_waited_for(shell: Shell, harness: JobsHarness) -> None:
    first = shell.json("schedule", "trigger", POLL, "--key", "k", "--arg", "days=7")
    assert (first["state"], first["correlation_id"]) == ("waiting", "acme/poll/trigger:k")
    assert shell.json("schedule", "trigger", POLL, "--key", "k")["id"] == first["id"]
    skipped = shell.json("schedule", "trigger", POLL, status=1)
    assert skipped["state"] == "skipped_overlap"
    ended(harness, RunState.FAILED, reason="ValueError: no such table")
    (failed,) = shell.json("schedule", "runs", POLL, "--state", "failed")
    assert failed["reason"] == "ValueError: no such table"
    assert failed["lag_s"] >= 0

    def work() -> None:
        deadline = monotonic() + PATIENCE_S
        while not harness.execute("SELECT 1 FROM feedq.run WHERE state = 'waiting'"):
            assert monotonic() < deadline
            sleep(0.05)
        ended(harness, RunState.SUCCEEDED)

    worker = Thread(target=work)
    worker.start()
    done = shell.json("schedule", "trigger", POLL, "--wait", "--timeout", "1m")
    worker.join()
    assert done["state"] == "succeeded"
    assert shell.json("schedule", "show", POLL)["counts"]["skipped_overlap"] == 1


def test_waiting_runs_are_purged_and_cancelled(shell: Shell, harness: JobsHarness) -> None:
    run = shell.json("schedule", "trigger", POLL)
    assert shell.json("schedule", "cancel", str(run["id"]))["state"] == "cancelled"
    assert "has ended (cancelled)" in shell.run("schedule", "cancel", str(run["id"])).stderr
    shell.ok("schedule", "trigger", POLL)
    assert shell.json("schedule", "purge", POLL) == {"name": POLL, "cancelled": 1}
    assert row(shell, POLL)["waiting"] == 0


def test_a_backfill_makes_what_is_not_there(shell: Shell, harness: JobsHarness) -> None:
    arguments = ("schedule", "backfill", POLL, "--from", "2026-01-01", "--to", "2026-01-02", "--yes")
    assert shell.json(*arguments) == {"name": POLL, "ticks": 24, "made": 24, "existing": 0}
    assert shell.json(*arguments)["existing"] == 24
    (newest,) = shell.json("schedule", "runs", POLL, "--limit", "1")
    assert (newest["key"], newest["kind"]) == ("2026-01-01T23:00:00Z", "backfill")
    depths = {queue["name"]: queue["waiting"] for queue in shell.json("schedule", "queue", "list")}
    assert depths == {"default": 24, "reports": 0}


def test_a_schedule_of_a_later_release_is_shown_paused_declared_anew_and_stops_no_other(
    shell: Shell, harness: JobsHarness
) -> None:
    harness.execute("UPDATE feedq.schedule SET policy = %s WHERE name = %s", '{"warp": 9}', POLL)
    assert (row(shell, POLL)["task"], row(shell, POLL)["pause_reason"]) == ("(cannot be read)", None)
    assert "cannot read" in row(shell, POLL)["unreadable"]
    assert row(shell, "acme/cleanup")["unreadable"] is None
    for refused in (("edit", POLL, "--timeout", "1m"), ("show", POLL), ("export",), ("resume", POLL)):
        said = shell.run("schedule", *refused)
        assert said.exit_code != 0, refused
        assert f"schedule '{POLL}'" in said.stderr, refused
    shell.ok("schedule", "pause", POLL)
    assert row(shell, POLL)["state"] == "paused"
    shell.ok("schedule", "edit", POLL, "--task", "acme.jobs.poll", "--every", "2h")
    assert row(shell, POLL)["state"] == "paused", "somebody wanted it so"
    shell.ok("schedule", "resume", POLL)
    assert (row(shell, POLL)["state"], row(shell, POLL)["pause_reason"]) == ("active", None)
    harness.execute("UPDATE feedq.schedule SET policy = %s WHERE name = %s", '{"warp": 9}', POLL)
    shell.ok("schedule", "remove", POLL, "--yes")


def test_a_manifest_declares_schedules_of_a_later_release_anew(shell: Shell, harness: JobsHarness) -> None:
    harness.execute("UPDATE feedq.schedule SET policy = %s", '{"warp": 9}')
    harness.elapse(3_600)
    harness.store.jobs.runs.fire_due(limit=9)
    assert row(shell, POLL)["state"] == "paused", "it cannot be fired"
    assert shell.json("apply", "-f", "-", given="schedules: []\n")["changes"] == []
    given = MANIFEST.replace(", paused: true", "")
    done = shell.json("apply", "-f", "-", given=given)
    assert {change["note"] for change in done["changes"]} == {"cannot be read by this release; declared anew"}
    found = {schedule["name"]: schedule for schedule in shell.json("schedule", "list")}
    assert [found[name]["unreadable"] for name in found] == [None] * 3
    assert found[POLL]["state"] == "active"
    assert found["acme/once"]["state"] == "paused", (
        "it was declared so, and the manifest does not say otherwise"
    )
    assert shell.json("apply", "-f", "-", given=given)["unchanged"] == 4


@pytest.mark.parametrize(
    ("column", "stored"),
    [("policy", '{"pause_on_failure": {"most": 3}}'), ("job", '{"task": {"name": "t"}}'), ("job", "{}")],
)
def test_status_and_doctor_name_a_schedule_of_a_later_release(
    shell: Shell, harness: JobsHarness, column: str, stored: str
) -> None:
    harness.job_worker(ttl_s=1e6)
    shell.ok("schedule", "pause", POLL)
    harness.execute(f"UPDATE feedq.schedule SET {column} = %s WHERE name = %s", stored, POLL)
    harness.execute(f"UPDATE feedq.schedule SET {column} = %s WHERE name = %s", stored, "acme/cleanup")
    warnings = {warning["name"]: warning["detail"] for warning in shell.json("status")["warnings"]}
    said = "2 schedules that this release of feedq cannot read: acme/cleanup, acme/poll"
    assert warnings["declarations"] == said
    checks = orjson.loads(shell.run("doctor", "--json").stdout)["checks"]
    assert [check["detail"] for check in checks if check["name"] == "declarations"] == [said]
    assert "None" not in str([check["detail"] for check in checks if check["name"] == "tasks"])


def test_of_those_that_can_be_read_some_are_exported(shell: Shell, harness: JobsHarness) -> None:
    harness.execute("UPDATE feedq.schedule SET policy = %s WHERE name = %s", '{"warp": 9}', POLL)
    assert "acme.jobs.once" in shell.ok("schedule", "export", "acme/once")


# -- the fleet ---------------------------------------------------------------------------------------


def test_status_counts_schedules_runs_and_slots(shell: Shell, harness: JobsHarness) -> None:
    names = {warning["name"] for warning in shell.json("status")["warnings"]}
    assert "schedules" in names, "no worker has job slots"
    worker = harness.job_worker(slots=3)
    run = harness.store.jobs.schedules.trigger(POLL)
    harness.start(run, worker)
    shell.ok("schedule", "trigger", "acme/once")
    status = shell.json("status")
    assert status["schedules"] == {
        "total": 3,
        "active": 2,
        "paused": 1,
        "paused_by_failures": [],
        "overdue_s": None,
    }
    runs = status["runs"]
    assert (runs["running"], runs["waiting"], runs["due"]) == (1, 1, 1)
    assert (runs["workers"], runs["slots"]) == (1, 3)
    assert runs["oldest_due_s"] >= 0
    assert "schedules" not in {warning["name"] for warning in status["warnings"]}
    assert "job slots  3 on 1 worker" in shell.ok("status")


def test_what_is_overdue_and_what_failures_have_paused_is_seen(
    shell: Shell, harness: JobsHarness, database_url: str
) -> None:
    harness.job_worker(ttl_s=1e6)
    shell.ok("schedule", "trigger", "acme/cleanup")
    shell.ok("schedule", "edit", "acme/cleanup", "--retries", "0")
    shell.ok("schedule", "purge", "acme/cleanup")
    shell.ok("schedule", "trigger", "acme/cleanup")
    ended(harness, RunState.FAILED)
    harness.elapse(7_200)
    state = harness.store.job_state()
    assert state.tripped == ("acme/cleanup",)
    assert state.overdue_s is not None
    assert state.overdue_s > 3_000
    assert {"schedules", "ticks", "paused"} <= {check.name for check in job_checks(state)}
    assert "paused by failures" in shell.run("doctor").stdout
