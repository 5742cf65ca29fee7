"""What the pages of schedules ask for and show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs

import pytest

from feedq.core.schedule.model import Run, RunKind, RunState, Schedule, ScheduleState, ScheduleView
from feedq.core.schedule.spec import CatchUp, Overlap, ScheduleSpec
from feedq.errors import InvalidInput
from feedq.verbs.report.details import schedule_declaration_lines, standing_lines
from feedq.verbs.report.masking import shown
from feedq.verbs.schedules import schedule_row
from feedq.verbs.wording import lag_s, seconds, tick_of, took_s, why_run
from feedq.web.params import (
    ScheduleQuery,
    parse_schedules,
    parse_states,
)
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


def asked(text: str) -> Callable[[str], str | None]:
    given = parse_qs(text, keep_blank_values=True)
    return lambda name: given.get(name, [None])[0]  # None where nothing is given


# -- what an address asks for ------------------------------------------------------------------------


def test_an_address_leads_to_the_next_part_of_the_same_list() -> None:
    query = parse_schedules(asked("prefix=acme%2F&limit=50"), limit=200)
    assert query == ScheduleQuery("acme/", "", 50)
    further = parse_schedules(asked(query.address(usual_limit=200, after="acme/ü&x")[1:]), limit=200)
    assert further == ScheduleQuery("acme/", "acme/ü&x", 50)
    assert ScheduleQuery(limit=200).address(usual_limit=200) == "?"


@pytest.mark.parametrize(
    ("parse", "named"),
    [
        (lambda: parse_states("failed,broken"), "state='broken': must be one of waiting"),
        (lambda: parse_schedules(asked("limit=501"), limit=200), "from 1 to 500"),
        (lambda: parse_schedules(asked("limit=0"), limit=100), "limit='0'"),
    ],
)
def test_a_wrong_argument_is_named(parse: Callable[[], object], named: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse()
    assert named in str(raised.value)


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


def test_a_schedule_says_where_it_stands() -> None:
    paused = schedule(
        state=ScheduleState.PAUSED,
        pause_reason="3 runs in a row did not succeed",
        paused_until=NOW + timedelta(hours=2),
        next_fire_at=NOW + timedelta(hours=1, seconds=20),
        failures=3,
    )
    lines = {
        line.name: line.text for line in standing_lines(ScheduleView(paused, None, 4, 1), counts={}, now=NOW)
    }
    assert lines["paused because"] == "3 runs in a row did not succeed"
    assert lines["paused until"] == "2026-01-01 02:00:00Z (in 2h)"
    assert lines["fires"] == "2026-01-01 01:00:20Z (in 60m), with its jitter"
    assert (lines["waiting"], lines["running"], lines["failures"]) == ("4", "1", "3 in a row")
    active = {line.name for line in standing_lines(ScheduleView(schedule(), None, 0, 0), counts={}, now=NOW)}
    assert not {"paused because", "paused until", "fires"} & active


def test_a_declaration_is_shown_with_its_policies_and_without_its_secrets() -> None:
    declared = spec(
        overlap=Overlap.BUFFER_ALL,
        buffer_max=20,
        start_deadline=30,
        pause_on_failure=5,
        retries={"limit": 3},
        catch_up={"policy": CatchUp.ALL},
    )
    lines = {line.name: line.text for line in schedule_declaration_lines(declared)}
    assert lines["when"] == "cron 0 2 * * * Europe/Berlin"
    assert lines["overlap"] == "buffer_all, up to 20 waiting"
    assert lines["catch-up"].startswith("all within 24h, at most 100; ")
    assert lines["start deadline"] == "30s"
    assert lines["retries"] == "3, after 10s, × 2, up to 10m"
    assert "yesterday" in lines["named arguments"]
    assert SECRET not in "\n".join(lines.values())


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
