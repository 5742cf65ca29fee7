"""What the pages of schedules ask for and show."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from feedq.core.schedule.model import Run, RunKind, RunState, Schedule, ScheduleState, ScheduleView
from feedq.core.schedule.spec import ScheduleSpec
from feedq.verbs.details import Fact, schedule_lines, shown
from feedq.verbs.schedules import ScheduleDocument, schedule_row
from feedq.verbs.wording import lag_s, seconds, tick_of, took_s, why_run
from tests.fakes.clock import NEW_YEAR
from tests.schedules import schedule_spec

NOW = NEW_YEAR
SECRET = "hunter2"  # what must be shown nowhere


def spec(name: str = "acme/rollup", **changes: Any) -> ScheduleSpec:
    job = {"task": "acme.roll_up", "args": [1], "kwargs": {"day": "yesterday", "api_key": SECRET}}
    return schedule_spec(name, cron=("0 2 * * *",), zone="Europe/Berlin", **job | changes)


def schedule(of: ScheduleSpec | None = None, **changes: Any) -> Schedule:
    tick = NOW + timedelta(hours=1)
    made = Schedule(7, of or spec(), ScheduleState.ACTIVE, None, None, 3, tick, tick, 0, NOW, NOW)
    return replace(made, **changes)


def run(**changes: Any) -> Run:
    made = Run(
        id=41,
        schedule_id=7,
        schedule="acme/rollup",
        kind=RunKind.TICK,
        key="2026-01-01T00:00:00Z",
        tick_at=NOW,
        ticks=1,
        due_at=NOW + timedelta(seconds=1),
        state=RunState.SUCCEEDED,
        reason=None,
        attempt=1,
        fence=9,
        worker_id=None,
        worker="w1@host",
        started_at=NOW + timedelta(seconds=1.25),
        deadline_at=None,
        ended_at=NOW + timedelta(seconds=31.25),
        job=spec(),
    )
    return replace(made, **changes)


# -- words -------------------------------------------------------------------------------------------


def test_a_runs_lag_counts_from_when_it_was_due_and_not_from_its_tick() -> None:
    assert lag_s(run()) == 0.25
    assert took_s(run(), now=NOW + timedelta(days=1)) == 30
    assert [seconds(value) for value in (None, 0.25, 30.0)] == [None, "250 ms", "30s"]


def test_a_run_says_which_tick_it_is() -> None:
    assert tick_of(run()) == "2026-01-01 00:00:00Z"
    assert tick_of(run(kind=RunKind.BACKFILL)) == "2026-01-01 00:00:00Z (backfill)"
    missed = run(state=RunState.MISSED_CATCHUP, ticks=1_000_000, started_at=None)
    assert tick_of(missed) == "1,000,000 ticks from 2026-01-01 00:00:00Z"


@pytest.mark.parametrize(
    "name", ["password", "db_password", "api-key", "apiKey", "Authorization", "client_secret"]
)
def test_arguments_that_are_secrets_by_their_names_are_masked(name: str) -> None:
    given = {"outer": [{name: SECRET, "day": "today"}], name: {"value": SECRET}}
    assert shown(given) == {"outer": [{name: "***", "day": "today"}], name: "***"}


def test_references_and_what_is_no_secret_are_shown_and_passwords_of_urls_are_not() -> None:
    given = {
        "token": "${ACME_TOKEN}",
        "password": None,
        "tokens_max": 5,
        "url": f"https://ada:{SECRET}@example.com/x",
        "list": (1, 2.5, True),
    }
    assert shown(given) == given | {"url": "https://ada:***@example.com/x", "list": [1, 2.5, True]}


def test_the_reason_of_a_run_is_one_line_without_passwords() -> None:
    failed = run(reason=f"cannot reach\npostgresql://u:{SECRET}@db/x")
    assert why_run(failed) == "cannot reach\\npostgresql://u:***@db/x"


def standing(view: ScheduleView) -> list[Fact]:
    found = ScheduleDocument(schedule_row(view), {}, None, {}, [], NOW, NOW, "7.3")
    return schedule_lines(found, now=NOW)


def test_a_schedule_says_where_it_stands() -> None:
    paused = schedule(
        state=ScheduleState.PAUSED,
        pause_reason="3 runs in a row did not succeed",
        paused_until=NOW + timedelta(hours=2),
        next_fire_at=NOW + timedelta(hours=1, seconds=20),
        failures=3,
    )
    lines = dict(standing(ScheduleView(paused, None, 4, 1)))
    assert lines["paused because"] == "3 runs in a row did not succeed"
    assert lines["paused until"] == "2026-01-01 02:00:00Z (in 2h)"
    assert lines["fires"] == "2026-01-01 01:00:20Z (in 60m), with its jitter"
    assert (lines["waiting"], lines["running"], lines["failures"]) == ("4", "1", "3 in a row")
    active = {name for name, text in standing(ScheduleView(schedule(), None, 0, 0)) if text}
    assert not {"paused because", "paused until", "fires"} & active


# -- documents ---------------------------------------------------------------------------------------


def test_arguments_of_jobs_stand_in_a_schedules_own_document_only() -> None:
    view = ScheduleView(schedule(), run(), 1, 0)
    row = schedule_row(view)
    assert row.last is not None
    assert row.last.correlation_id == "acme/rollup/2026-01-01T00:00:00Z"
    assert "yesterday" not in str(row)
    declared = shown(view.schedule.spec.plain())
    assert isinstance(declared, dict)
    assert declared["kwargs"] == {"day": "yesterday", "api_key": "***"}
