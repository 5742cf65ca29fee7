"""`feedq schedule`, and `apply`, `status` and `doctor` where schedules come in, on a real control database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from threading import Thread
from time import monotonic, sleep
from typing import Any

import msgspec
import pytest
import yaml

from feedq.core.schedule.model import Finish, Offer, RunState
from tests.contract.jobs_harness import JobsHarness
from tests.contract.shell import Shell, opened_shell

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
def shell(control_database_url: str, broker_url: str) -> Iterator[Shell]:
    JobsHarness(control_database_url).close()  # which has emptied it
    with opened_shell(control_database_url, broker_url) as opened:
        yield opened


@pytest.fixture
def harness(control_database_url: str, shell: Shell) -> Iterator[JobsHarness]:
    """The same database, from the side of workers; with the schedules of the manifest."""
    made = JobsHarness(control_database_url)
    shell.ok("apply", "-f", "-", given=MANIFEST)
    yield made
    made.close()


def ended(harness: JobsHarness, state: RunState, *, reason: str | None = None) -> None:
    """A worker takes what waits, and it ends like this."""
    worker = harness.job_worker(f"w{harness.now().timestamp()}")
    runs = harness.store.jobs.runs
    granted = runs.claim(Offer(worker.id, 4)).runs
    assert granted
    finishes = [Finish(run.id, run.fence, state, reason) for run in granted]
    assert runs.finish(worker.id, finishes).ended == [run.id for run in granted]


def row(shell: Shell, name: str) -> Any:
    (found,) = shell.json("schedule", "list", "--prefix", name)
    return found


# -- declaring ---------------------------------------------------------------------------------------


def test_a_manifest_is_applied_exported_and_applied_again(shell: Shell) -> None:
    told = shell.ok("apply", "-f", "-", given=MANIFEST).splitlines()
    assert told[:2] == ["+ queue reports", "+ schedule acme/cleanup"], "limits are there before runs"
    assert shell.json("apply", "-f", "-", given=MANIFEST)["unchanged"] == 4
    exported = shell.ok("export")
    again = shell.json("apply", "-f", "-", "--prune", given=exported)
    assert (again["changes"], again["unchanged"]) == ([], 4)
    assert yaml.safe_load(shell.ok("export", POLL)) == {
        "schedules": [{"name": POLL, "every": "1h", "task": "acme.jobs.poll"}]
    }
    assert "no feed and no schedule named 'x'" in shell.run("export", POLL, "x").stderr
    changed = MANIFEST.replace("every: 1h", "every: 2h").replace("first: 10s", "first: 1s")
    said = shell.ok("apply", "-f", "-", given=changed)
    assert '    every: "1h" -> "2h"\n' in said
    assert '    retries.first: (unset) -> "1s"\n' in said
    assert shell.json("apply", "-f", "-", "--prune", given="feeds: []\n")["removed"] == 0
    asked = shell.run("apply", "-f", "-", "--prune", given="schedules: []\nqueues: []\n").stderr
    assert "Remove 3 schedules and 1 queue that the manifests do not declare?" in asked
    pruned = shell.json("apply", "-f", "-", "--prune", "--yes", given="schedules: []\nqueues: []\n")
    assert pruned["removed"] == 4
    assert shell.ok("schedule", "list") == "no schedules; declare some with `feedq apply`\n"
    assert shell.ok("schedule", "list", "--queues") == "no queue has limits or runs\n"


def test_a_schedule_is_set_shown_and_removed(shell: Shell, harness: JobsHarness) -> None:
    told = shell.ok("schedule", "set", POLL, "every=10m", "kwargs.days=7", "jitter=5s")
    assert told.splitlines() == [
        '    every: "1h" -> "10m"',
        '    jitter: (unset) -> "5s"',
        "    kwargs.days: (unset) -> 7",
        "acme/poll changed",
    ]
    assert shell.json("schedule", "set", POLL, "every=600", "jitter=5")["unchanged"] == 1
    shown = shell.json("schedule", "show", POLL)
    declaration, shown = shown["declaration"], shown["schedule"]
    assert (declaration["every"], declaration["kwargs"], declaration["jitter"]) == ("10m", {"days": 7}, "5s")
    (tick,) = shell.json("schedule", "next", POLL, "--count", "1")["ticks"]
    assert datetime.fromisoformat(tick["tick_at"]) == datetime.fromisoformat(shown["next_tick_at"])
    assert datetime.fromisoformat(tick["fire_at"]) == datetime.fromisoformat(shown["next_fire_at"])
    assert shown["next_fire_at"] != shown["next_tick_at"]
    (tried,) = shell.json("schedule", "next", POLL, "cron=0 3 1 1 *", "--count", "1")["ticks"]
    assert tried["tick_at"][5:16] == "01-01T03:00", "what it would be"
    assert shell.json("schedule", "show", POLL)["declaration"]["every"] == "10m", "and is not"
    for words, why in (
        (("set", POLL), "nothing to set; give KEY=VALUE"),
        (("set", "priority=2"), "which schedules? name them"),
        (("set", POLL, "x", "priority=2"), "no schedule named 'x'"),
        (("set", POLL, "prioriti=2"), "did you mean priority?"),
        (("set", POLL, "buffer_max=0"), "buffer_max: must be a whole number"),
        (("set", POLL, "kwargs.token=hunter2"), "kwargs.token: would be stored and shown"),
        (("remove", POLL, "x", "--yes"), "no schedule named 'x'"),
        (("remove", POLL), "Remove acme/poll? There is no terminal to answer on"),
    ):
        refused = shell.run("schedule", *words)
        assert (refused.exit_code, refused.stdout) == (2, ""), words
        assert why in refused.stderr
        assert "hunter2" not in refused.stderr
    shell.ok("schedule", "remove", POLL, "--yes")
    assert "no schedule named" in shell.run("schedule", "show", POLL).stderr
    assert "+ schedule acme/poll" in shell.ok("apply", "-f", "-", given=MANIFEST)


@pytest.mark.parametrize(
    ("timing", "why"),
    [
        ("at: 2020-01-01T08:00Z", "at (2020-01-01T08:00:00Z) is in the past"),
        ("every: 1m, end: 2020-01-01", "its end (2020-01-01T00:00:00Z) is in the past"),
        (
            "every: 1d, end: 2999-01-01, exclude: 2000-01-01..2999-01-01",
            "its start, its end and its excluded days",
        ),
    ],
)
def test_a_schedule_that_never_fires_is_declared_with_a_warning(shell: Shell, timing: str, why: str) -> None:
    given = f"schedules: [{{name: never, task: t, {timing}}}]"
    warning = f"Warning: schedule never: will never fire: {why}"
    assert warning in shell.run("apply", "-f", "-", "--dry-run", given=given).stderr
    (told,) = shell.json("apply", "-f", "-", given=given)["warnings"]
    assert f"Warning: {told}".startswith(warning)
    changed = shell.run("schedule", "set", "never", "timeout=5m")
    assert (changed.exit_code, warning in changed.stderr) == (0, True)


def test_a_schedule_declared_as_paused_is_resumed_by_hand_or_by_the_manifest(shell: Shell) -> None:
    shell.ok("apply", "-f", "-", given=MANIFEST)
    assert row(shell, "acme/once")["state"] == "paused"
    shell.ok("apply", "-f", "-", given=MANIFEST.replace("paused: true", "paused: false"))
    assert row(shell, "acme/once")["state"] == "active"
    shell.ok("schedule", "set", "acme/once", "priority=5")
    assert row(shell, "acme/once")["state"] == "active", "what is set does not pause what was resumed"
    shell.ok("schedule", "pause", POLL, "--until", "1h", "--reason", "maintenance")
    changed = shell.json("apply", "-f", "-", given=MANIFEST)["changes"]
    differing = {option["option"] for change in changed for option in change["options"]}
    assert ([change["name"] for change in changed], differing) == (["acme/once"], {"paused", "priority"})
    paused = row(shell, POLL)
    assert (paused["state"], paused["pause_reason"]) == ("paused", "maintenance")
    assert "paused because  maintenance" in shell.ok("schedule", "show", POLL)
    assert "(paused: none of these fires" in shell.ok("schedule", "next", POLL)
    left = datetime.fromisoformat(paused["paused_until"]) - datetime.now(UTC)
    assert timedelta(minutes=50) < left < timedelta(minutes=70)
    shell.ok("schedule", "resume", POLL)
    assert row(shell, POLL)["state"] == "active"
    shell.ok("schedule", "pause", "acme/cleanup", "--until", "2999-12-01T08:00")
    assert row(shell, "acme/cleanup")["paused_until"].startswith("2999-12-01T07:00"), "in its zone"
    for options, why in (
        (("--until", "99999999999d"), "--until: '99999999999d' is not a time"),
        (("--until", "soon"), "--until: 'soon' is not a time"),
    ):
        assert why in shell.run("schedule", "pause", POLL, *options).stderr
    assert row(shell, POLL)["state"] == "active"


# -- runs --------------------------------------------------------------------------------------------


def test_a_trigger_is_run_and_waited_for(shell: Shell, harness: JobsHarness) -> None:
    first = shell.json("schedule", "trigger", POLL, "kwargs.days=7", "args=[1]", "--key", "k")
    assert (first["state"], first["correlation_id"]) == ("waiting", "acme/poll/trigger:k")
    assert harness.execute("SELECT job -> 'args', job -> 'kwargs' FROM feedq.run") == [([1], {"days": 7})]
    assert shell.json("schedule", "trigger", POLL, "--key", "k")["id"] == first["id"]
    assert "only args and kwargs" in shell.run("schedule", "trigger", POLL, "queue=x").stderr
    skipped = shell.json("schedule", "trigger", POLL, status=1)
    assert skipped["state"] == "skipped_overlap"
    refused = shell.run("schedule", "trigger", POLL)
    assert (refused.exit_code, "skipped_overlap: an earlier run has not ended" in refused.stdout) == (1, True)
    why = "this run was skipped under its `overlap` policy: an earlier run has not ended"
    assert refused.stderr == f"Error: schedule acme/poll: {why}\n"
    ended(harness, RunState.FAILED, reason="ValueError: no such table at postgresql://u:hunter2@db/x")
    (failed,) = shell.json("schedule", "runs", POLL, "--state", "failed")
    assert failed["reason"] == "ValueError: no such table at postgresql://u:***@db/x"
    header, line = shell.ok("schedule", "runs", POLL, "--state", "failed").splitlines()
    assert header.split() == ["ID", "KEY", "STATE", "WORKER", "DUE", "LAG", "TOOK", "NOTE"]
    assert line.endswith("trigger; ValueError: no such table at postgresql://u:***@db/x")
    assert "acme/poll/trigger:k" in shell.ok("schedule", "runs")
    assert shell.ok("schedule", "runs", "--state", "lost") == "no runs\n"
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
    assert shell.json("schedule", "show", POLL)["counts"]["skipped_overlap"] == 2


def test_a_backfill_makes_what_is_not_there(shell: Shell, harness: JobsHarness) -> None:
    arguments = ("schedule", "backfill", POLL, "--from", "2026-01-01", "--to", "2026-01-02", "--yes")
    made = shell.json(*arguments)
    assert (made["ticks"], made["made"], made["existing"]) == (24, 24, 0)
    assert shell.json(*arguments)["existing"] == 24
    (newest,) = shell.json("schedule", "runs", POLL, "--limit", "1")
    assert (newest["key"], newest["kind"]) == ("2026-01-01T23:00:00Z", "backfill")
    depths = {queue["name"]: queue["waiting"] for queue in shell.json("schedule", "list", "--queues")}
    assert depths == {"default": 24, "reports": 0}
    asked = shell.run(*arguments[:-1]).stderr
    assert "Make 24 runs of acme/poll, for the ticks 2026-01-01T00:00:00Z to 2026-01-01T23:00:00Z?" in asked
    for begin, end, why in (
        ("2025-12-31", "2025-12-31", "the end must be later than the beginning"),
        ("2025-12-31", "2999-01-01", "the end lies in the future"),
        ("soon", "2025-01-01", "--from: 'soon' is not a time"),
    ):
        asked = shell.run("schedule", "backfill", POLL, "--from", begin, "--to", end, "--yes").stderr
        assert why in asked


@pytest.mark.parametrize("keys", [{"pause_on_failure": {"most": 3}}, {"task": {"name": "t"}}, {"task": None}])
def test_status_and_doctor_bear_a_schedule_of_a_later_release(
    shell: Shell, harness: JobsHarness, keys: dict[str, Any]
) -> None:
    harness.job_worker(ttl_s=1e6)
    shell.ok("schedule", "pause", POLL)
    for name in (POLL, "acme/cleanup"):
        harness.damage(name, keys)
    shell.ok("status")
    checks = msgspec.json.decode(shell.run("doctor", "--json").stdout)["checks"]
    assert "None" not in str([check["detail"] for check in checks if check["name"] == "tasks"])


# -- the fleet ---------------------------------------------------------------------------------------


def test_status_counts_schedules_runs_and_slots(shell: Shell, harness: JobsHarness) -> None:
    names = {warning["name"] for warning in shell.json("status")["warnings"]}
    assert "schedules" in names, "no worker has job slots"
    worker = harness.job_worker(slots=3)
    run = harness.store.jobs.schedules.trigger(POLL)
    harness.start(run, worker)
    shell.ok("schedule", "trigger", "acme/once")
    status = shell.json("status")
    runs = status["jobs"]
    assert (runs["active"], runs["paused"], runs["tripped"], runs["overdue_s"]) == (2, 1, [], None)
    assert (runs["running"], runs["waiting"], runs["due"]) == (1, 1, 1)
    assert (runs["workers"], runs["slots"]) == (1, 3)
    assert runs["oldest_due_s"] >= 0
    assert "schedules" not in {warning["name"] for warning in status["warnings"]}
    assert "job slots  3 on 1 worker" in shell.ok("status")
