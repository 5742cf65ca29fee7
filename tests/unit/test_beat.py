"""What an elected beat asks for, and what it leaves to those before it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from threading import Event
from typing import Any, cast

import pytest
from celery import Celery
from celery.schedules import crontab

from feedq.celery import beat
from feedq.celery.beat import (
    JUDGE_AGAIN_S,
    ElectedScheduler,
    ElectionCandidate,
)
from feedq.control.store.election import LivenessCheck
from feedq.core.limits import WHOLE_PASS_EVERY_S
from feedq.settings import Settings

LIMIT_S = 10.0


class Time:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(beat, "monotonic", made)
    return made


class Passes:
    """Stands for the thread that makes passes: a test says when one begins and ends."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self.asked: list[float] = []
        """When each was asked for."""
        self._waiting: list[Future[None]] = []
        self._under_way: Future[None] | None = None

    def submit(self, _: Callable[[], None]) -> Future[None]:
        self.asked.append(self._time.now)
        self._waiting.append(Future())
        return self._waiting[-1]

    def begin(self) -> None:
        self._under_way = self._waiting.pop(0)
        assert self._under_way.set_running_or_notify_cancel()

    def finish(self) -> None:
        assert self._under_way is not None
        self._under_way.set_result(None)


@pytest.fixture
def passes(time: Time, monkeypatch: pytest.MonkeyPatch) -> Passes:
    made = Passes(time)
    monkeypatch.setattr(beat, "Lane", lambda _: made)
    return made


@pytest.fixture
def candidate(passes: Passes) -> ElectionCandidate:
    return ElectionCandidate(Settings(reconcile_interval_s=5, ttl_s=6))


def check(*, crashed: int = 0, expired: int = 0) -> LivenessCheck:
    return LivenessCheck(crashed=crashed, suspected=0, expired=expired)


def test_a_crash_is_reported_at_once_even_while_a_pass_is_under_way(
    candidate: ElectionCandidate, passes: Passes, time: Time
) -> None:
    candidate._ask()
    passes.begin()  # it may have looked before the crash
    time.now += 0.01
    candidate._judge(check(crashed=1))
    assert passes.asked == [1000.0, 1000.01]
    candidate._judge(check(crashed=1))
    assert len(passes.asked) == 2, "one crash was reported twice"
    passes.finish()
    passes.begin()
    candidate._judge(check(crashed=2))
    assert len(passes.asked) == 3, "the second crash was not reported"


def test_what_a_pass_left_as_it_was_is_reported_again_after_a_while(
    candidate: ElectionCandidate, passes: Passes, time: Time
) -> None:
    candidate._judge(check(expired=1))
    passes.begin()
    time.now += JUDGE_AGAIN_S
    candidate._judge(check(expired=1))
    assert len(passes.asked) == 1, "the pass is under way"
    passes.finish()
    candidate._judge(check(expired=1))
    assert len(passes.asked) == 2
    passes.begin()
    passes.finish()
    candidate._judge(check(expired=1))
    assert len(passes.asked) == 2, "not with every check"


def test_passes_soon_after_a_whole_one_only_place_feeds_and_another_whole_one_follows(
    candidate: ElectionCandidate, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bool] = []
    followed: list[float] = []
    monkeypatch.setattr(beat, "run_reconcile", lambda *, placing_only: made.append(placing_only))
    monkeypatch.setattr(beat, "wake_later", followed.append)
    for _ in range(4):
        candidate._pass_here()
        time.now += WHOLE_PASS_EVERY_S / 5
    assert made == [False, True, True, True]
    assert followed == [WHOLE_PASS_EVERY_S], "once for all of them"
    time.now += WHOLE_PASS_EVERY_S
    candidate._pass_here()
    candidate._pass_here()
    assert made[4:] == [False, True]
    assert len(followed) == 2


def test_after_its_own_outage_it_takes_nobody_for_crashed_for_a_ttl(
    candidate: ElectionCandidate, passes: Passes, time: Time
) -> None:
    candidate._check_after = time.now + 6
    candidate._judge(check(crashed=3))
    assert passes.asked == []
    time.now += 6.1
    candidate._judge(check(crashed=3))
    assert len(passes.asked) == 1


def test_a_thousand_edits_are_few_passes_and_the_last_edit_is_served(
    candidate: ElectionCandidate, passes: Passes, time: Time
) -> None:
    began_at = None
    for _ in range(1000):
        candidate._woken = True
        candidate._judge(check())
        time.now += 0.001
        # A pass takes a tenth of a second, and sees what came before it began.
        if began_at is None:
            passes.begin()
            began_at = time.now
        elif time.now >= began_at + 0.1:
            passes.finish()
            began_at = None
    assert len(passes.asked) <= 12, "one under way, and one that waits"
    assert passes._waiting, "which serves the last edit"


def test_a_change_while_a_pass_is_under_way_is_asked_for_at_once_for_it_may_have_come_too_late(
    candidate: ElectionCandidate, passes: Passes
) -> None:
    for asked in (1, 2):
        candidate._woken = True
        candidate._judge(check())
        assert len(passes.asked) == asked
        if asked == 1:
            passes.begin()
    candidate._woken = True
    candidate._judge(check())
    assert len(passes.asked) == 2, "the one that has not begun serves this change, too"
    passes.finish()
    passes.begin()
    candidate._woken = True
    candidate._judge(check())
    assert len(passes.asked) == 3, "by now it may have begun before the change"
    assert not candidate._woken


def test_a_worker_whose_last_session_was_heard_to_end_needs_no_second_look(
    candidate: ElectionCandidate, passes: Passes
) -> None:
    candidate._judge(LivenessCheck(0, 1, 0, is_awaited=True))
    assert passes.asked == []
    candidate._judge(LivenessCheck(0, 1, 0, is_awaited=True, has_heard=True))
    assert len(passes.asked) == 1
    candidate._judge(check(crashed=1))
    assert len(passes.asked) == 1, "the pass is under way"


class Elected:
    """Stands for the candidate's thread, which needs a database."""

    def __init__(self) -> None:
        self.leads = False
        self.term = 0

    def win(self) -> None:
        self.leads, self.term = True, self.term + 1


@pytest.fixture
def elected() -> Elected:
    return Elected()


@pytest.fixture
def scheduler(elected: Elected, monkeypatch: pytest.MonkeyPatch) -> ElectedScheduler:
    app = Celery("test", set_as_current=False)
    app.conf.beat_schedule = {
        "hourly": {"task": "hourly", "schedule": crontab(minute="0")},
        "often": {"task": "often", "schedule": 5.0},
    }
    made = ElectedScheduler(app, Producer=lambda *_, **__: None)
    made._candidate = cast("ElectionCandidate", elected)
    return made


@pytest.fixture
def sent(scheduler: ElectedScheduler, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    record: Callable[..., None] = lambda entry, **_: names.append(entry.name)  # noqa: E731
    monkeypatch.setattr(scheduler, "apply_entry", record)
    return names


def pass_hours(scheduler: ElectedScheduler, hours: int) -> None:
    """Let everything have been run that long ago."""
    for entry in scheduler.schedule.values():
        entry.last_run_at = entry.default_now() - timedelta(hours=hours)
    scheduler._heap = None


def tick_often(scheduler: ElectedScheduler) -> None:
    for _ in range(10):
        scheduler.tick()


def test_a_beat_that_is_not_elected_sends_nothing(scheduler: ElectedScheduler, sent: list[str]) -> None:
    pass_hours(scheduler, 3)
    tick_often(scheduler)
    assert sent == []


def test_ticks_go_on_while_the_broker_hangs(
    scheduler: ElectedScheduler, elected: Elected, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, answer = Event(), Event()
    sent: list[str] = []

    def apply_async(entry: Any, **_: Any) -> None:
        hanging.set()
        answer.wait(LIMIT_S)
        sent.append(entry.name)

    monkeypatch.setattr(scheduler, "apply_async", apply_async)
    elected.win()
    scheduler.tick()
    pass_hours(scheduler, 3)
    tick_often(scheduler)
    assert hanging.wait(LIMIT_S)
    assert sent == []
    answer.set()
    scheduler._outbox.close(timeout_s=LIMIT_S)
    assert sorted(set(sent)) == ["hourly", "often"], "both leave once the broker answers"


def test_a_newly_elected_beat_does_not_repeat_the_ticks_of_its_predecessor(
    scheduler: ElectedScheduler, sent: list[str], elected: Elected
) -> None:
    pass_hours(scheduler, 3)
    elected.win()
    tick_often(scheduler)
    assert sent == ["often"]


def test_an_elected_beat_sends_what_falls_due_while_it_is_elected(
    scheduler: ElectedScheduler, sent: list[str], elected: Elected
) -> None:
    elected.win()
    scheduler.tick()
    pass_hours(scheduler, 3)
    tick_often(scheduler)
    assert sorted(set(sent)) == ["hourly", "often"]
    assert sent.count("hourly") == 1


def test_an_elected_beat_sleeps_until_an_entry_falls_due(
    scheduler: ElectedScheduler, sent: list[str], elected: Elected
) -> None:
    elected.win()
    scheduler.tick()
    often = scheduler.schedule["often"]
    often.last_run_at = often.default_now() - timedelta(seconds=often.schedule.seconds - 0.009)
    scheduler._heap = None
    sent.clear()
    left_s = scheduler.tick()
    assert sent or left_s > 0, "it would tick again at once, and again, for what is left"
