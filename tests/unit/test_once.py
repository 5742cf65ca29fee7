"""Beat entries that are enqueued as runs: which tick a beat means, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.beat import Scheduler
from celery.schedules import BaseSchedule, crontab, schedule
from hypothesis import given
from hypothesis import strategies as st

from feedq.celery import once
from feedq.celery.once import EARLY_MAX_S, EARLY_SHARE, OnceCelery, prepare, tick_of
from feedq.core.schedule.spec import ScheduleSpec
from feedq.errors import InvalidInput, Unavailable

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
HOURLY = crontab(minute=15)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-22T{text}+00:00")


@pytest.mark.parametrize(
    ("timing", "now", "tick"),
    [
        (schedule(timedelta(seconds=0.5)), at("12:00:07.700"), at("12:00:07.500")),
        (
            schedule(7),
            at("00:00:00"),
            at("00:00:00") - timedelta(seconds=NOON.replace(hour=0).timestamp() % 7),
        ),
        (HOURLY, at("12:14:00"), at("11:15:00")),
        (HOURLY, at("12:15:00"), at("12:15:00")),
        (crontab(hour=4, minute=30), at("03:00:00"), at("04:30:00") - timedelta(days=1)),
        (crontab(day_of_week="mon", hour=1, minute=0), at("12:00:00"), at("01:00:00") - timedelta(days=6)),
        (crontab(0, 0, day_of_month=29, month_of_year=2), NOON, datetime(2024, 2, 29, tzinfo=UTC)),
    ],
)
def test_the_tick_is_the_last_one_on_the_databases_clock(timing: Any, now: datetime, tick: datetime) -> None:
    assert tick_of(timing, now=now) == tick


def test_a_beat_that_is_a_moment_early_means_the_tick_to_come() -> None:
    assert tick_of(HOURLY, now=at("12:14:59.200")) == at("12:15:00")
    assert tick_of(HOURLY, now=at("12:14:58.900")) == at("11:15:00")
    assert tick_of(schedule(100), now=at("12:01:39.500")) == at("12:01:40")
    assert tick_of(schedule(1), now=at("12:00:00.850")) == at("12:00:00")
    assert tick_of(schedule(1), now=at("12:00:00.950")) == at("12:00:01")


@given(
    st.sampled_from([1.0, 10.0, 60.0, 3600.0]),
    # Also where jitter decides on which side of the boundary a beat comes.
    st.one_of(st.none(), st.floats(0, 1)),
    st.lists(st.floats(-0.002, 0.002), min_size=3, max_size=20),
)
def test_a_single_beat_on_an_interval_loses_no_tick_to_its_jitter(
    every_s: float, phase: float | None, jitters: list[float]
) -> None:
    timing, sent = schedule(every_s), None
    if phase is None:
        phase = 1 - min(EARLY_MAX_S / every_s, EARLY_SHARE)
    ticks = []
    for n, jitter in enumerate(jitters):
        now = NOON + timedelta(seconds=(n + phase) * every_s + jitter)
        sent = tick_of(timing, now=now, sent=sent)
        ticks.append(sent)
    assert len(set(ticks)) == len(ticks)
    assert ticks == sorted(ticks)


class Sunset(BaseSchedule):
    """A schedule of some other kind."""


def entry(**changes: Any) -> dict[str, Any]:
    return {"task": "acme.close", "schedule": crontab(hour=4), "options": {"feedq_once": True}, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schedule": Sunset()}, "interval or a crontab; the ticks of Sunset"),
        ({"schedule": None}, "interval or a crontab"),
        ({"schedule": 0}, "more than 0 seconds"),
        ({"options": {"feedq_once": True, "expires": 5}}, "expires would be ignored"),
        ({"kwargs": {"password": "hunter2"}}, "password"),
        ({"kwargs": {"at": NOON}}, "datetime"),
    ],
)
def test_what_cannot_be_done_is_refused_at_start(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        prepare({"close": entry(**changes)})
    assert "hunter2" not in str(refused.value)


class Ticks:
    """The control database, as far as a beat sees it."""

    def __init__(self) -> None:
        self.time = at("04:00:00")
        self.enqueued: list[tuple[str, datetime, ScheduleSpec]] = []
        self.failures = 0
        self.jobs = self.schedules = self

    def now(self) -> datetime:
        if self.failures:
            self.failures -= 1
            raise Unavailable("for the test")
        return self.time

    def once(self, job: ScheduleSpec, key: str, tick_at: datetime) -> bool:
        self.enqueued.append((key, tick_at, job))
        return True


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    made = Ticks()
    monkeypatch.setattr(once, "store", lambda: made)
    monkeypatch.setattr(once, "_sent", {})
    monkeypatch.setattr(once, "AWAY_RETRY_S", 0.001)
    return made


def plain_beat(entries: dict[str, Any]) -> Scheduler:
    app = OnceCelery("test", set_as_current=False, broker="redis://127.0.0.1:1/0")
    app.conf.beat_schedule = prepare(entries)
    return Scheduler(app)


@pytest.mark.parametrize("is_registered", [False, True])
def test_celerys_own_scheduler_enqueues_instead_of_sending(ticks: Ticks, is_registered: bool) -> None:
    beat = plain_beat({"close": entry(args=(2026,), kwargs={"dry": True})})
    if is_registered:

        @beat.app.task(name="acme.close", shared=False)
        def close(year: int, dry: bool) -> None:
            raise AssertionError("it is not called here")

    beat.apply_async(beat.schedule["close"])
    ((key, tick_at, job),) = ticks.enqueued
    assert (job.name, key, tick_at) == ("beat:close", "2026-11-22T04:00:00Z", at("04:00:00"))
    assert (job.task, list(job.args), dict(job.kwargs)) == ("acme.close", [2026], {"dry": True})


def test_a_database_that_is_away_is_waited_for(ticks: Ticks) -> None:
    beat = plain_beat({"close": entry()})
    ticks.failures = 3
    beat.apply_async(beat.schedule["close"])
    assert len(ticks.enqueued) == 1


def test_one_that_stays_away_is_an_error_as_with_the_broker(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "AWAY_MAX_S", 0.0)
    beat = plain_beat({"close": entry()})
    ticks.failures = 3
    with pytest.raises(Exception, match="Couldn't apply scheduled task close"):
        beat.apply_async(beat.schedule["close"])
    assert ticks.enqueued == []
