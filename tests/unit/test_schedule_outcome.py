"""Retries with backoff."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedq.core.schedule.outcome import retry_in_s
from feedq.core.schedule.spec import ScheduleSpec
from tests.schedules import job_spec

DAY_S = 86_400.0


def job_with(**retries: float) -> ScheduleSpec:
    return job_spec(retries=retries)


def test_attempts_are_repeated_up_to_the_limit_waiting_longer_each_time() -> None:
    job = job_with(limit=4, first=10, factor=3, max=100)
    waits = [retry_in_s(job, attempt=n) for n in range(1, 7)]
    assert waits == [10, 30, 90, 100, None, None]


durations = st.one_of(st.just(0.0), st.just(DAY_S), st.floats(0, DAY_S))


@given(st.integers(1, 10**6), durations, st.floats(1, 100), durations)
def test_a_wait_is_never_negative_nor_beyond_its_maximum(
    attempt: int, first: float, factor: float, longest: float
) -> None:
    job = job_with(limit=10**6, first=first, factor=factor, max=longest)
    wait_s = retry_in_s(job, attempt=attempt)
    assert wait_s is not None
    assert min(first, longest) <= wait_s <= longest
    earlier_s = retry_in_s(job, attempt=max(attempt - 1, 1))
    assert earlier_s is not None
    assert earlier_s <= wait_s
