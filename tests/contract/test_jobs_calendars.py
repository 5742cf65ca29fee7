"""The contract of calendars: what a change of one does to schedules, whoever declares what at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from feedq.errors import Conflict, InvalidInput, NotFound
from feedq.schedule.model import Calendar, Cron, Every, Exclusion, Schedule
from feedq.schedule.timing import next_tick
from feedq.store.jobs.schedules import ScheduleStore
from tests.contract.jobs_harness import JobsHarness, schedule_spec
from tests.contract.jobs_stage import fire, runs_of
from tests.contract.test_jobs_schedules_races import wait_until_blocked

NEVER = ("1999-12-31",)
DAY = timedelta(days=1)


def leaving_out(*calendars: str, zone: str = "UTC") -> Exclusion:
    return Exclusion((), zone, calendars)


def daily(jobs: JobsHarness, name: str = "nightly", **changes: object) -> Schedule:
    return jobs.schedule(name, timing=Cron("0 12 * * *"), exclude=leaving_out("holidays"), **changes)


def day_of(schedule: Schedule) -> str:
    assert schedule.next_tick_at is not None
    return schedule.next_tick_at.date().isoformat()


def days(begin: datetime, count: int) -> str:
    return f"{begin.date()}..{(begin + count * DAY).date()}"


def test_calendars_are_set_changed_and_removed(jobs: JobsHarness) -> None:
    assert jobs.calendars.set(Calendar("holidays", ("12-25",))) == 0
    jobs.calendars.set(Calendar("closing", ("2026-12-31", "2026-08-01..2026-08-14")))
    assert [one.name for one in jobs.calendars.all()] == ["closing", "holidays"]
    jobs.calendars.set(Calendar("holidays", ("01-01", "12-25")))
    assert jobs.calendars.all()[1] == Calendar("holidays", ("01-01", "12-25"))
    jobs.calendars.remove("holidays")
    with pytest.raises(NotFound, match="'holidays'"):
        jobs.calendars.remove("holidays")
    changed, *others = jobs.events("calendar_changed", "calendar_removed")
    assert changed == ("calendar_changed", {"calendar": "holidays", "dates": 1, "schedules": 0})
    assert others[-1] == ("calendar_removed", {"calendar": "holidays"})


@pytest.mark.parametrize("dates", [(), ("Christmas",), ("01-01..12-31",)])
def test_a_calendar_that_cannot_be_right_is_refused(jobs: JobsHarness, dates: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="calendar 'holidays': dates: "):
        jobs.calendars.set(Calendar("holidays", dates))


def test_a_schedule_leaves_out_the_days_of_its_calendars(jobs: JobsHarness) -> None:
    jobs.calendars.set(Calendar("holidays", (days(jobs.now(), 30),)))
    jobs.calendars.set(Calendar("closing", (days(jobs.now() + 31 * DAY, 30),)))
    added = jobs.schedule(timing=Cron("0 12 * * *"), exclude=leaving_out("holidays", "closing"))
    assert added.next_tick_at is not None
    assert timedelta(days=60) < added.next_tick_at - jobs.now() < timedelta(days=63)
    assert jobs.schedules.get("nightly") == added
    assert jobs.schedules.view("nightly").schedule.spec.exclude.calendar_dates
    assert jobs.calendars.users() == {"holidays": 1, "closing": 1}


def test_a_calendar_has_to_be_there_first(jobs: JobsHarness) -> None:
    with pytest.raises(InvalidInput, match=r"'nightly': exclude\.calendars: there is no calendar 'holidays'"):
        daily(jobs)
    spec = jobs.schedule().spec
    with pytest.raises(InvalidInput, match="there is no calendar 'holidays'"):
        jobs.schedules.edit("nightly", replace(spec, exclude=leaving_out("holidays")))


def test_a_change_of_a_calendar_times_its_schedules_anew(jobs: JobsHarness) -> None:
    jobs.calendars.set(Calendar("holidays", NEVER))
    before, paused = daily(jobs), daily(jobs, "other", paused=True)
    unconcerned = jobs.schedule("unconcerned")
    assert jobs.calendars.set(Calendar("holidays", (day_of(before),))) == 2
    for name in ("nightly", "other"):
        after = jobs.schedules.get(name)
        assert after.next_tick_at == next_tick(after.spec, after=jobs.now())
        assert day_of(after) > day_of(before)
    assert jobs.schedules.get("unconcerned") == unconcerned
    assert jobs.calendars.set(Calendar("holidays", (day_of(before),))) == 0, "nothing has changed"
    jobs.calendars.set(Calendar("holidays", NEVER))
    assert jobs.schedules.get("nightly").next_tick_at == before.next_tick_at
    assert jobs.schedules.get("other").state is paused.state


def test_a_tick_that_is_due_on_a_day_now_left_out_is_not_fired(jobs: JobsHarness) -> None:
    jobs.calendars.set(Calendar("holidays", NEVER))
    jobs.schedule(timing=Every(60.0), exclude=leaving_out("holidays"))
    jobs.elapse(300)
    jobs.calendars.set(Calendar("holidays", (days(jobs.now() - DAY, 3),)))
    fire(jobs)
    assert runs_of(jobs) == []
    schedule = jobs.schedules.get("nightly")
    assert schedule.next_tick_at is not None
    assert schedule.next_tick_at > jobs.now() + DAY


def test_a_tick_that_is_due_keeps_its_place_when_a_calendar_changes(jobs: JobsHarness) -> None:
    jobs.calendars.set(Calendar("holidays", NEVER))
    jobs.schedule(timing=Every(3600.0), exclude=leaving_out("holidays"), misfire_after_s=9e6)
    jobs.elapse(3600)
    due = jobs.schedules.get("nightly").next_tick_at
    jobs.calendars.set(Calendar("holidays", ("1999-12-30",)))
    assert jobs.schedules.get("nightly").next_tick_at == due
    fire(jobs)
    assert [run.tick_at for run in runs_of(jobs)] == [due]


def test_the_days_of_its_calendars_outlive_what_is_done_to_a_schedule(jobs: JobsHarness) -> None:
    jobs.calendars.set(Calendar("holidays", (days(jobs.now(), 30),)))
    tick = daily(jobs).next_tick_at
    jobs.schedules.pause("nightly")
    assert jobs.schedules.resume("nightly").next_tick_at == tick
    edited = replace(jobs.schedules.get("nightly").spec, jitter_s=5.0)
    assert jobs.schedules.edit("nightly", edited).next_tick_at == tick
    assert jobs.schedules.get("nightly").spec.exclude.calendar_dates
    freed = replace(edited, exclude=Exclusion())
    assert jobs.schedules.edit("nightly", freed).next_tick_at == next_tick(freed, after=jobs.now())


def test_a_calendar_in_use_cannot_be_removed(jobs: JobsHarness) -> None:
    jobs.calendars.set(Calendar("holidays", ("12-25",)))
    for n in range(7):
        daily(jobs, f"nightly-{n}")
    with pytest.raises(Conflict, match=r"left out by nightly-0, .*nightly-4 and others; take it from"):
        jobs.calendars.remove("holidays")
    for n in range(7):
        jobs.schedules.remove(f"nightly-{n}")
    jobs.calendars.remove("holidays")


def test_who_declares_while_a_calendar_changes_is_timed_by_the_change(jobs: JobsHarness) -> None:
    jobs.calendars.set(Calendar("holidays", NEVER))
    spec = schedule_spec(timing=Cron("0 12 * * *"), exclude=leaving_out("holidays"))
    changed = Calendar("holidays", (days(jobs.now(), 30),))
    add_within: Any = ScheduleStore.add.__wrapped__  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as pool:
        with jobs.database.transaction() as c:
            add_within(jobs.schedules, c, spec)
            change = pool.submit(jobs.calendars.set, changed)
            wait_until_blocked(jobs, change)
        assert change.result(60) == 1
    tick = jobs.schedules.get("nightly").next_tick_at
    assert tick is not None
    assert tick > datetime.now(UTC) + 29 * DAY
