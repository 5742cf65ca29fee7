"""Which runs a worker may claim: those whose task it knows, on workers with the labels that their jobs ask for."""

from __future__ import annotations

from feedq.core.schedule.model import RunState
from feedq.core.schedule.spec import Overlap
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import claim, claim_one, fall_due

OLD, NEW = "tasks.report", "tasks.brand_new"
GPU = {"gpu": "yes"}


def add(jobs: JobsHarness, name: str, task: str, **job: object) -> None:
    jobs.schedule(name, overlap=Overlap.ALLOW_ALL, task=task, **job)


def test_a_worker_claims_only_runs_whose_task_it_knows(jobs: JobsHarness) -> None:
    """As in a rolling deploy: what is new waits for a worker that has it, and fails on none that has not."""
    old, new = jobs.job_worker("old", tasks=[OLD]), jobs.job_worker("new", tasks=[OLD, NEW])
    for name, task in (("a", OLD), ("b", NEW)):
        add(jobs, name, task)
    fall_due(jobs)
    assert [run.job.task for run in claim(jobs, old)] == [OLD]
    assert claim(jobs, old) == []
    assert [run.job.task for run in claim(jobs, new)] == [NEW]


def test_a_worker_of_a_release_that_does_not_say_claims_all(jobs: JobsHarness) -> None:
    add(jobs, "b", NEW)
    jobs.schedules.trigger("b")
    assert claim_one(jobs, jobs.job_worker("a")).job.task == NEW


def test_however_many_wait_that_it_cannot_do_it_finds_what_it_can(jobs: JobsHarness) -> None:
    old = jobs.job_worker("old", tasks=[OLD])
    add(jobs, "b", NEW)
    add(jobs, "a", OLD)
    jobs.schedules.trigger("b")
    jobs.execute(
        "INSERT INTO feedq.run (schedule_id, key, tick_at, due_at, rank_at, job, exclusive) "
        "SELECT schedule_id, 'x' || n, tick_at, due_at, rank_at, job, false "
        "FROM feedq.run, generate_series(1, 2000) n"
    )
    jobs.schedules.trigger("a")
    assert claim_one(jobs, old).job.task == OLD


def test_a_job_asks_for_labels(jobs: JobsHarness) -> None:
    plain = jobs.job_worker("plain", tasks=[OLD])
    fast = jobs.job_worker("fast", tasks=[OLD], labels={"gpu": "yes", "zone": "eu"})
    other = jobs.job_worker("other", labels={"gpu": "no"})
    add(jobs, "a", OLD, selector={"required": GPU})
    run = jobs.schedules.trigger("a")
    assert claim(jobs, plain) == claim(jobs, other) == []
    claimed = claim_one(jobs, fast)
    assert (claimed.id, claimed.job.selector.required) == (run.id, GPU)


def test_lanes_keep_to_priority_among_all_that_a_worker_may_do(jobs: JobsHarness) -> None:
    worker = jobs.job_worker("a", tasks=[OLD, NEW], labels=GPU)
    add(jobs, "a", OLD, priority=-5)
    add(jobs, "b", NEW, priority=5)
    add(jobs, "c", OLD, selector={"required": GPU})
    for name in "abc":
        jobs.schedules.trigger(name)
    assert [run.schedule for run in claim(jobs, worker)] == ["b", "c", "a"]


def test_a_job_without_a_task_is_ended_by_whoever_finds_it(jobs: JobsHarness) -> None:
    add(jobs, "a", OLD)
    run = jobs.schedules.trigger("a")
    jobs.execute("UPDATE feedq.run SET job = '[]'")
    assert claim(jobs, jobs.job_worker("a", tasks=[OLD])) == []
    assert jobs.schedules.run(run.id).state is RunState.FAILED


def test_workers_that_know_the_same_share_a_row_and_none_stays_unused(jobs: JobsHarness) -> None:
    shared, gone = ["tasks.shared", "tasks.shared_too"], ["tasks.of_yesterday"]
    jobs.job_worker("a", tasks=shared)
    jobs.job_worker("b", tasks=shared[::-1] * 2)
    forgotten = jobs.job_worker("c", tasks=gone)
    count = "SELECT count(*) FROM feedq.task_set WHERE tasks && %s"
    assert jobs.execute(count, shared + gone) == [(2,)]
    jobs.execute("DELETE FROM feedq.worker WHERE id = %s", str(forgotten.id))
    jobs.execute("UPDATE feedq.task_set SET used_at = now() - interval '2 days'")
    jobs.job_worker("d", tasks=[OLD])
    assert jobs.execute(count, shared + gone) == [(1,)], "one that a worker refers to stays"


# -- what is said of it ------------------------------------------------------------------------------


def test_schedules_that_no_worker_can_serve_are_named(jobs: JobsHarness) -> None:
    for name, task, selector in (("a", OLD, {}), ("b", NEW, {}), ("c", OLD, GPU)):
        add(jobs, name, task, selector={"required": selector})
    names = ["a", "b", "c", "nobody"]
    assert jobs.schedules.unserved(names) == {}, "no worker runs jobs: that is another matter"
    jobs.job_worker("cannot", slots=0, labels=GPU)
    jobs.job_worker("old", tasks=[OLD])
    found = jobs.schedules.unserved(names)
    assert found == {
        "b": f"no worker knows task {NEW}: its runs wait until one does (FEEDQ_IMPORTS names its module)",
        "c": f"no worker that knows task {OLD} has the labels gpu=yes: its runs wait until one does",
    }
    assert jobs.schedules.view("b").unserved == found["b"]
    assert jobs.schedules.view("a").unserved is None
    jobs.job_worker("new", tasks=[OLD, NEW], labels=GPU)
    assert jobs.schedules.unserved(names) == {}
