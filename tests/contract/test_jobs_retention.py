"""The contract of history that a schedule keeps itself: so many runs, or so long."""

from __future__ import annotations

import pytest

from feedq.control.store.jobs import runs
from feedq.core.schedule.spec import Overlap
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import runs_of
from tests.schedules import Keys


def history(jobs: JobsHarness, name: str, ages_d: list[float], **keep: Keys) -> None:
    """A schedule with runs that ended so many days ago, the first first."""
    jobs.schedule(name, overlap=Overlap.ALLOW_ALL, task="t", **keep)
    for n, age in enumerate(ages_d):
        run = jobs.schedules.trigger(name, key=f"{n}")
        jobs.end(run)
        sql = "UPDATE feedq.run SET ended_at = ended_at - make_interval(secs => %s) WHERE id = %s"
        jobs.execute(sql, age * 86_400, run.id)


def trim(jobs: JobsHarness, *, days: int = 30, limit: int = 100) -> int:
    return jobs.store.jobs.runs.trim(older_than_days=days, limit=limit)


def kept(jobs: JobsHarness, name: str) -> list[str]:
    return [run.key.removeprefix("trigger:") for run in runs_of(jobs, name)]


def test_a_schedule_keeps_so_many_runs_and_others_keep_theirs(jobs: JobsHarness) -> None:
    history(jobs, "few", [0.0] * 6, keep={"runs": 2})
    history(jobs, "all", [0.0] * 6)
    assert trim(jobs) == 4
    assert (kept(jobs, "few"), len(kept(jobs, "all"))) == (["4", "5"], 6)
    assert trim(jobs) == 0


def test_a_schedule_keeps_its_history_shorter_or_longer_than_all_others(jobs: JobsHarness) -> None:
    ages = [40.0, 20.0, 5.0, 0.0]
    history(jobs, "short", ages, keep={"days": 10})
    history(jobs, "long", ages, keep={"days": 90})
    history(jobs, "usual", ages)
    trim(jobs)
    assert [len(kept(jobs, name)) for name in ("short", "long", "usual")] == [2, 4, 3]
    history(jobs, "both", ages, keep={"days": 30, "runs": 1})
    trim(jobs)
    assert kept(jobs, "both") == ["3"]


def test_what_has_not_ended_is_kept_however_many_there_are(jobs: JobsHarness) -> None:
    jobs.schedule("few", overlap=Overlap.ALLOW_ALL, keep={"runs": 1})
    first, *_ = [jobs.schedules.trigger("few", key=str(n)) for n in range(4)]
    assert trim(jobs) == 0
    jobs.end(first)
    assert trim(jobs) == 1
    assert kept(jobs, "few") == ["1", "2", "3"]


def test_much_is_deleted_a_page_at_a_time_of_a_few_schedules_at_a_time(
    jobs: JobsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "SCHEDULES_PER_SCAN", 2)
    for name in "abc":
        history(jobs, name, [0.0] * 4, keep={"runs": 1})
    assert [trim(jobs, limit=4) for _ in range(5)] == [4, 2, 3, 0, 0]
    assert [kept(jobs, name) for name in "abc"] == [["3"], ["3"], ["3"]]
