"""What is said of feeds that wait and of workers that do not suffice: from values alone."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from feedq.control.store.fleet_state import FleetState, JobState
from feedq.control.store.jobs.listing import ScheduledTask
from feedq.core import remedies
from feedq.core.model import (
    Feed,
    FeedSpec,
    FeedView,
    Lease,
    LeaseState,
    Load,
    Reason,
    Status,
    Unmet,
    Worker,
    WorkerState,
    WorkerTarget,
    WorkerView,
)
from feedq.core.placement.base import Rules
from feedq.core.selection import Selection
from feedq.errors import SyncRefused
from feedq.verbs.catalogs.syncing import check_removals
from feedq.verbs.diagnosis.checks import REASONS, TROUBLED, TROUBLES, Check, Level, fail, problems, warn
from feedq.verbs.diagnosis.feed_checks import explain, feed_checks
from feedq.verbs.diagnosis.fleet_checks import (
    OVERDUE_S,
    WAITING_S,
    Overview,
    check_tasks,
    described_runs,
    described_schedules,
    fleet_checks,
    job_checks,
    placing_checks,
    summary,
)
from feedq.verbs.wording import NAMED_MAX
from tests.fakes.listing import required_by, tallies_of, troubles_of
from tests.fakes.sink import IDENTITY
from tests.fakes.standing import standing

NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)

RULES = Rules(settle_s=1.5)


def worker(
    name: str,
    *,
    feeds: int = 0,
    capacity: int = 10,
    labels: Mapping[str, str] | None = None,
    target: WorkerTarget = WorkerTarget.SERVING,
    state: WorkerState = WorkerState.ACTIVE,
    load: Load | None = None,
) -> WorkerView:
    made = Worker(
        id=uuid4(),
        name=name,
        queue=name,
        capacity=capacity,
        host="h",
        pid=1,
        version="0",
        labels=labels or {},
        state=state,
        lock_key=1,
        started_at=NOW,
        heartbeat_at=NOW,
        expires_at=NOW + timedelta(seconds=6),
        load=load or Load(),
        target_state=target,
    )
    return WorkerView(made, feeds, 0.5)


def feed(
    name: str = "a", *, tenant: str = "", required: Mapping[str, str] | None = None, **lease: Any
) -> FeedView:
    keys = {"name": name, "connector": "tcp", "source": {}, "sink": {}, "tenant": tenant}
    spec = FeedSpec.of(keys | {"selector": {"required": required or {}}})
    declared = Feed(1, spec, 1, NOW, NOW, IDENTITY)
    its_lease = Lease(1, **lease)
    found = standing(declared, its_lease, None, now=NOW)
    return FeedView(declared, its_lease, None, found.status, found.because)


def running(name: str, on: UUID, **options: Any) -> FeedView:
    return feed(name, state=LeaseState.RUNNING, worker_id=on, connected=True, **options)


def said(view: FeedView, *workers: WorkerView, rules: Rules = RULES) -> str:
    sentence = explain(view, workers, now=NOW, rules=rules)
    assert sentence is not None
    return sentence


# -- why one feed waits ------------------------------------------------------------------------------


def test_labels_that_no_single_worker_has_are_named() -> None:
    waiting = feed(reason=Reason.NO_MATCH, required={"region": "eu", "disk": "ssd"})
    sentence = said(waiting, worker("one", labels={"region": "eu"}), worker("two", labels={"disk": "ssd"}))
    assert sentence.startswith(
        "no worker that serves has disk=ssd, region=eu, which it requires: start one with FEEDQ_WORKER_LABELS"
    )


def test_a_full_fleet_is_said_with_its_places() -> None:
    waiting = feed(reason=Reason.NO_CAPACITY)
    sentence = said(waiting, worker("one", feeds=10), worker("two", feeds=10))
    assert sentence.startswith("all 20 places on 2 workers are taken or promised; start another worker")


def test_the_cap_of_a_tenant_is_named_when_it_is_what_keeps_a_feed_waiting() -> None:
    waiting = feed(reason=Reason.NO_CAPACITY, tenant="acme")
    rules = Rules(tenant_caps={"acme": 3})
    assert "3 feeds of tenant 'acme', as many as FEEDQ_TENANT_CAPS allows" in said(
        waiting, worker("one", feeds=3), rules=rules
    )
    assert said(waiting, worker("one", feeds=10), rules=rules).startswith("all 10 places")


def test_a_fleet_in_which_nobody_serves_is_said() -> None:
    waiting = feed(reason=Reason.NO_CAPACITY)
    assert said(waiting).startswith("no worker serves; start one")
    resting = worker("one", target=WorkerTarget.DRAINED)
    assert said(waiting, resting).startswith("no worker serves (1 cordoned or drained: feedq worker uncordon")


@pytest.mark.parametrize(
    ("reason", "seconds", "expected"),
    [
        (
            Reason.HELD,
            5.0,
            "it is reserved for the successor of its worker, which was stopped, until 12:00:05Z (in 5.0s): wait",
        ),
        (Reason.HELD, -1.0, "which was stopped, until 11:59:59Z (now due)"),
        (
            Reason.BACKOFF,
            40.0,
            "it is retried automatically, next at 12:00:40Z (in 40s): see its last error",
        ),
    ],
)
def test_what_waits_for_a_time_says_until_when(reason: Reason, seconds: float, expected: str) -> None:
    waiting = feed(reason=reason, due_at=NOW + timedelta(seconds=seconds), attempts=6, held_for="one")
    assert expected in said(waiting, worker("one"))


def test_a_move_says_where_to_and_how_long_the_owner_has() -> None:
    target = worker("two")
    moving = feed(
        state=LeaseState.STOPPING,
        reason=Reason.MOVED,
        worker_id=uuid4(),
        promised_to=target.worker.id,
        due_at=NOW + timedelta(seconds=30),
    )
    assert (
        said(moving, target) == "it is being moved to two; its owner has until 12:00:30Z (in 30s) to let go"
    )
    assert "a worker that is gone" in said(moving)


# -- the fleet in numbers ----------------------------------------------------------------------------


def numbers(feeds: int, *workers: WorkerView) -> Overview:
    return summary(tallies_of([feed(f"f{i}") for i in range(feeds)]), workers)


def test_only_workers_that_serve_have_places_and_a_spread() -> None:
    found = numbers(
        3,
        worker("one", feeds=2),
        worker("two", feeds=4, target=WorkerTarget.CORDONED),
        worker("three", feeds=1, target=WorkerTarget.DRAINED),
        worker("four", feeds=9, state=WorkerState.DRAINING),
    )
    assert (found.active, found.serving, found.cordoned, found.drained, found.draining) == (3, 1, 1, 1, 1)
    assert (found.capacity, found.held, found.spread, found.utilisation) == (10, 2, (2, 2), 0.2)


def test_what_a_cordoned_worker_keeps_needs_no_other_place_until_it_dies() -> None:
    resting = worker("two", feeds=8, target=WorkerTarget.CORDONED)
    assert (numbers(18, worker("one", feeds=10), resting).lacking) == 0
    assert (numbers(19, worker("one", feeds=10), resting).lacking) == 1
    # Whichever of the two dies: eighteen feeds are left to ten places, or to none and eight that stay.
    assert numbers(18, worker("one", feeds=10), resting).lacking_after_loss == 10
    larger = worker("two", feeds=15, target=WorkerTarget.CORDONED)
    assert numbers(25, worker("one", feeds=10), larger).lacking_after_loss == 15


# -- checks of placement -----------------------------------------------------------------------------


def checks(views: list[FeedView], workers: list[WorkerView]) -> dict[str, str]:
    required = required_by(views, each=NAMED_MAX)
    return {c.name: c.detail for c in placing_checks(required, workers)}


def test_a_fleet_without_labels_or_caps_has_nothing_to_say() -> None:
    assert checks([feed("a", tenant="acme")], [worker("one")]) == {}
    assert checks([feed("a", required={"region": "eu"})], []) == {}, (
        "that there is no worker is said elsewhere"
    )


def test_labels_that_only_one_worker_has_leave_no_room_for_its_loss() -> None:
    views = [feed("a", required={"region": "eu"})]
    one, two = (worker(name, labels={"region": "eu"}) for name in ("one", "two"))
    assert checks(views, [one, worker("other")])["labels"].endswith("0 when the largest of these dies")
    assert checks(views, [one, two]) == {}


# -- whose fault it is -------------------------------------------------------------------------------


def found(views: list[FeedView], workers: list[WorkerView]) -> dict[str, Check]:
    """The check of each name; of several the last."""
    numbers = summary(tallies_of(views), workers)
    state = FleetState(NOW, NOW, 0.5, None)
    of_fleet = fleet_checks(numbers, workers, state, reconcile_interval_s=5.0)
    return {check.name: check for check in (*of_fleet, *warnings(views))}


def warnings(views: list[FeedView]) -> list[Check]:
    """What is said of feeds."""
    troubles = troubles_of(views, TROUBLED, REASONS, each=NAMED_MAX, tenants=3, now=NOW)
    explained = partial(explain, workers=[], now=NOW, rules=RULES)
    return list(feed_checks(troubles, summary(tallies_of(views), []), now=NOW, explained=explained))


def test_a_worker_that_stands_still_fails_the_checks_with_its_name_and_its_process() -> None:
    stuck = worker("two", feeds=3, load=Load(loop_lag_s=11.5))
    check = found([], [worker("one"), stuck])["loops"]
    assert (check.level, check.detail) == (
        Level.FAIL,
        "two has stood still for 12 s, and so have its 3 feeds",
    )
    assert "pid 1 on h" in check.advice
    silent = replace(worker("two"), heartbeat_age_s=4.5)
    assert found([], [silent])["loops"].detail.startswith("two was last heard of 4 s ago")


def test_a_worker_that_alone_cannot_write_is_told_from_a_sink_that_is_away() -> None:
    cut_off, other = (
        worker("one", load=Load(sinks_down=("lake",))),
        worker("two", load=Load(sinks_up=("lake",))),
    )
    check = found([], [cut_off, other])["sinks of workers"]
    assert (check.level, check.detail) == (Level.WARN, "one cannot write to sink lake, and two can")
    assert "FEEDQ_SINKS__LAKE" in check.advice
    check = found([], [cut_off, worker("two")])["sinks of workers"]
    assert check.level is Level.FAIL
    assert check.detail == "one cannot write to sink lake, and no other worker is known to"


def test_what_nobody_could_look_at_is_not_called_well() -> None:
    assert found([], [worker("one")])["sinks of workers"].level is Level.NOT_CHECKED


REFUSED_LATELY = {
    "dead_letters": 3_369,
    "dead_letter_at": NOW - timedelta(seconds=5),
    "dead_letter_error": 'column "n" is of type integer',
}


def test_dead_letters_of_late_are_warned_of_with_the_latest_reason() -> None:
    views = [running("a", uuid4(), **REFUSED_LATELY), running("b", uuid4())]
    check = found(views, [worker("one")])["dead_letters"]
    assert (check.level, check.detail) == (
        Level.WARN,
        '1 feed: a (3,369 dead letters, the latest 5.0s ago: column "n" is of type integer)',
    )
    long_ago = {**REFUSED_LATELY, "dead_letter_at": NOW - timedelta(days=1)}
    assert [check.level for check in warnings([running("a", uuid4(), **long_ago)])] == [Level.OK]
    gone = {**REFUSED_LATELY, "dead_letters": 0}
    assert [check.level for check in warnings([running("a", uuid4(), **gone)])] == [Level.OK]


@pytest.mark.parametrize(
    ("status", "lease", "said"),
    [
        (
            Status.QUARANTINED,
            {"quarantined": True, "blamed": 2, "blame": "stalled in ping.py:69, of postgresql://u:pw@h/d"},
            "stalled in ping.py:69, of postgresql://u:***@h/d",
        ),
        (
            Status.FAILING,
            {"failures": 7, "last_error": "no route"},
            "no route; 7 failures in a row, and nothing landed since",
        ),
        (Status.SINK_UNAVAILABLE, {"sink_error": "permission denied"}, "permission denied"),
        (Status.REFUSING, {**REFUSED_LATELY, "dead_per_s": 2.0}, 'column "n" is of type integer'),
        (Status.STALLED, {"stalled": True, "last_error": "silent for 60 s"}, "silent for 60 s"),
    ],
)
def test_a_feed_in_trouble_is_named_with_its_reason(status: Status, lease: dict[str, Any], said: str) -> None:
    view = feed("odd", **{"state": LeaseState.RUNNING, "worker_id": uuid4(), "connected": True, **lease})
    (check,) = warnings([view])
    assert (check.name, check.level, check.detail) == (status, Level.WARN, f"1 feed: odd ({said})")
    assert check.advice
    assert len(explain(view, [], now=NOW, rules=RULES) or "") > 20


def test_a_feed_that_a_worker_was_lost_to_is_named_although_it_is_not_in_quarantine() -> None:
    view = running("odd", uuid4(), blamed=1, blame="killed: by a signal, or by its own code", blamed_at=NOW)
    (check,) = warnings([view])
    assert (check.level, check.detail) == (
        Level.WARN,
        "1 feed: odd (killed: by a signal, or by its own code)",
    )
    long_ago = replace(view, lease=replace(view.lease, blamed_at=NOW - timedelta(days=1)))
    assert [check.level for check in warnings([long_ago])] == [Level.OK]


def test_a_feed_on_a_worker_that_stands_still_is_not_told_to_look_at_its_source() -> None:
    stuck = worker("two", load=Load(loop_lag_s=11.5))
    view = replace(
        running("a", stuck.worker.id),
        status=Status.STALLED,
        because="its worker two has stood still for 12 s",
    )
    assert said(view, stuck).startswith("its worker two has stood still for 12 s; none of its feeds moves")
    assert "check the source" in said(view, worker("two"))


WELL = JobState(
    active=10,
    paused=2,
    tripped=(),
    overdue_s=None,
    running=3,
    waiting=5,
    due=4,
    oldest_due_s=12.0,
    workers=2,
    slots=8,
)
NO_JOBS = replace(
    WELL, active=0, paused=0, running=0, waiting=0, due=0, oldest_due_s=None, workers=0, slots=0
)


def found_of(state: JobState) -> dict[str, tuple[Level, str]]:
    return {check.name: (check.level, f"{check.detail} -> {check.advice}") for check in job_checks(state)}


def test_a_healthy_installation_has_no_warnings() -> None:
    assert found_of(WELL) == {
        "schedules": (Level.OK, "12: 10 active, 2 paused; 8 job slots on 2 workers -> ")
    }
    assert described_runs(WELL) == "3 running, 5 waiting, the oldest due for 12s"


def test_without_schedules_nothing_is_said() -> None:
    assert found_of(NO_JOBS) == {}
    # Runs of a schedule that was removed are something.
    assert found_of(replace(NO_JOBS, waiting=1))["schedules"][0] is Level.FAIL


def test_schedules_that_nobody_serves_fail() -> None:
    level, text = found_of(replace(WELL, slots=0, workers=0, oldest_due_s=1e6))["schedules"]
    assert level is Level.FAIL
    assert "no serving worker has job slots" in text
    assert "celery -A feedq worker -Q jobs" in text


def test_ticks_that_nobody_fires_fail() -> None:
    assert "ticks" not in found_of(replace(WELL, overdue_s=OVERDUE_S))
    level, text = found_of(replace(WELL, overdue_s=OVERDUE_S + 60))["ticks"]
    assert level is Level.FAIL
    assert "a tick fell due 90s ago and has not been fired" in text


def test_schedules_paused_by_failures_are_named() -> None:
    state = replace(WELL, tripped=tuple(f"s{n}" for n in range(7)))
    level, text = found_of(state)["paused"]
    assert level is Level.WARN
    assert "7 schedules paused by failures: s0, s1, s2, s3, s4 and 2 more" in text
    assert described_schedules(replace(WELL, tripped=("a",))) == "12: 10 active, 2 paused (1 by failures)"


@pytest.mark.parametrize(
    ("running", "said"),
    [
        (8, "all 8 job slots are taken -> start another worker"),
        (3, "while 5 job slots are free -> a limit, "),
    ],
)
def test_runs_that_wait_long_are_a_warning_that_says_why(running: int, said: str) -> None:
    assert "runs" not in found_of(replace(WELL, oldest_due_s=WAITING_S))
    level, text = found_of(replace(WELL, oldest_due_s=WAITING_S + 30, running=running))["runs"]
    assert level is Level.WARN
    assert "4 runs due and not started, the oldest for 90s" in text
    assert said in text


# -- what workers know -------------------------------------------------------------------------------


def task(name: str = "acme.mail", *, able: int = 2, is_known: bool = True, **changes: Any) -> ScheduledTask:
    plain = ScheduledTask(name, "acme/mail", 3, {}, workers=2, able=able, is_known=is_known)
    return replace(plain, **changes)


def judged(*tasks: ScheduledTask) -> list[tuple[Level, str]]:
    return [(check.level, check.detail) for check in check_tasks(tasks)]


@pytest.mark.parametrize(
    ("tasks", "level", "said"),
    [
        ([task(), task("b")], Level.OK, "2 tasks of schedules, each known to a worker"),
        ([task(), task("b", able=1)], Level.OK, "each known to a worker, 1 of them on some workers only"),
        (
            [task(able=0, is_known=False), task("b")],
            Level.FAIL,
            "schedule acme/mail (and 2 others): no worker knows task acme.mail: its runs wait until one does",
        ),
        (
            [task(able=0, selector={"gpu": "yes"}, schedules=1)],
            Level.FAIL,
            "schedule acme/mail: no worker that knows task acme.mail has the labels gpu=yes: its runs wait",
        ),
        ([task(workers=0, able=0, is_known=False)], Level.NOT_CHECKED, "no worker runs jobs"),
    ],
)
def test_tasks_are_judged_by_what_workers_know(tasks: list[ScheduledTask], level: Level, said: str) -> None:
    ((found, detail),) = judged(*tasks)
    assert (found, said in detail) == (level, True)


def test_without_schedules_there_are_no_tasks_to_check() -> None:
    assert judged() == []


def test_of_many_tasks_the_first_are_named() -> None:
    found = judged(*(task(f"t{n}", able=0, is_known=False) for n in range(8)))
    assert len(found) == 6
    assert found[-1] == (Level.WARN, "and 3 more tasks")


# -- the commands ------------------------------------------------------------------------------------


def listed(*views: FeedView) -> list[Check]:
    checks = [warn("capacity", "few places", "start another"), fail("beat", "no beat leads", "start one")]
    return problems([*checks, *warnings(list(views))])


def silent(name: str, tenant: str = "default") -> FeedView:
    streams = feed(name, state=LeaseState.RUNNING, connected=True, tenant=tenant)
    return replace(streams, unmet=(Unmet("max_silence", NOW, "silent for 5 minutes"),))


def test_what_fails_for_all_comes_first_and_then_the_worst_feeds() -> None:
    waits = feed("w", reason=Reason.NO_MATCH)
    backs_off = feed("b", reason=Reason.BACKOFF)
    failed = feed("f", reason=Reason.FAILED, last_error="no such option")
    found = [(one.name, one.feed) for one in listed(waits, backs_off, failed)]
    assert found == [("beat", None), ("failed", "f"), ("backoff", "b"), ("waiting", "w"), ("capacity", None)]


def test_a_feed_that_streams_and_is_not_as_expected_is_listed_with_its_since() -> None:
    (_, one, _) = listed(silent("s"))
    assert (one.level, one.name, one.feed, one.since) == (Level.WARN, "expectation", "s", NOW)
    assert one.detail == "silent for 5 minutes"


def test_feeds_of_a_tenant_with_the_same_trouble_are_one_problem_that_says_how_to_list_them() -> None:
    feeds = [silent(f"acme/{n:02}", "acme") for n in range(50)]
    _, one, other, _ = listed(*feeds, silent("beta/x", "beta"))
    assert (one.feeds, one.tenant, one.feed, one.since) == (50, "acme", None, NOW)
    assert one.detail == (
        "acme/00, acme/01, acme/02, acme/03, acme/04 and 45 more; of acme/00: silent for 5 minutes"
    )
    assert one.select == Selection(tenant="acme", unmet=True)
    assert one.advice.endswith("; `feedq feed list --tenant acme --unmet` lists them")
    assert (other.feeds, other.feed, other.select) == (1, "beta/x", None)


def test_feeds_without_a_tenant_are_chosen_where_nobody_elses_would_be() -> None:
    (_, one, _) = listed(silent("a", ""), silent("b", ""))
    assert (one.feeds, one.select) == (2, Selection(unmet=True))
    assert one.advice.endswith("; `feedq feed list --unmet` lists them")
    (_, one, other, _) = listed(silent("a", ""), silent("b", ""), silent("acme/x", "acme"))
    assert (one.feeds, one.select, other.feed) == (2, None, "acme/x")


def test_feeds_of_many_tenants_are_counted_together_beyond_the_first() -> None:
    found = listed(*(silent(f"t{n}/x", f"t{n}") for n in range(9)))[1:-1]
    assert [(one.tenant, one.feeds) for one in found] == [("t0", 1), ("t1", 1), ("t2", 1), (None, 6)]
    assert found[-1].select == Selection(unmet=True)


def test_a_feed_where_all_is_well_is_not_listed() -> None:
    found = listed(feed("s", state=LeaseState.RUNNING, connected=True))
    assert [one.name for one in found] == ["beat", "capacity"]


ROOT = Path(__file__).parents[2]

EVIL = """a;rm -rf $HOME "x" `'y'"""

"""More than a name may hold: spaces too."""

PRINTED = re.compile(r"feedq (?:feed|schedule|worker|apply|sync|events)\b[^`;:]*\{(?!command\()")

"""A command of ours, in which something stands that is not quoted."""


def commands(text: str) -> list[list[str]]:
    """The commands between backticks, as a shell reads them."""
    # The name holds a backtick itself.
    found = re.findall(r"`(feedq [^`]*)`", text.replace(shlex.quote(EVIL), "NAME"))
    return [shlex.split(one.replace("NAME", shlex.quote(EVIL))) for one in found]


@pytest.mark.parametrize("status", TROUBLED)
def test_commands_against_each_trouble_can_be_pasted(status: Status) -> None:
    view = replace(feed(EVIL), status=status)
    for text in (explain(view, [], now=NOW, rules=RULES), problems(warnings([view]))[0].advice):
        assert text is not None
        for words in commands(text):
            assert words[0] == "feedq"
            assert EVIL in words or words in (["feedq", "doctor"], ["feedq", "status"])


def test_commands_for_feeds_workers_and_catalogs_can_be_pasted() -> None:
    unexpected = replace(
        feed(EVIL, state=LeaseState.RUNNING, connected=True), unmet=(Unmet("max_silence", NOW, "silent"),)
    )
    (listed,) = problems(warnings([unexpected]))
    assert commands(listed.advice) == [["feedq", "feed", "show", EVIL]]

    waiting = feed(reason=Reason.NO_MATCH, required={"region": "eu"})
    resting = worker(EVIL, labels={"region": "eu"}, target=WorkerTarget.CORDONED)
    text = explain(waiting, [resting], now=NOW, rules=RULES)
    assert commands(str(text)) == [["feedq", "worker", "uncordon", EVIL]]

    with pytest.raises(SyncRefused) as refused:
        check_removals(EVIL, 50, 100, share_max=0.1, remove_up_to=None)
    assert commands(str(refused.value)) == [["feedq", "sync", EVIL, "--remove-up-to", "50"]]


def test_no_command_is_printed_with_a_name_that_is_not_quoted() -> None:
    found = []
    for path in (ROOT / "feedq").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr) and PRINTED.search(_written(node)):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def _written(node: ast.JoinedStr) -> str:
    said = [str(one.value) for one in node.values if isinstance(one, ast.Constant)]
    if not any("feedq " in one for one in said):
        return ""  # to write expressions anew takes long
    return "".join(
        str(one.value) if isinstance(one, ast.Constant) else f"{{{ast.unparse(one.value)}}}"
        for one in node.values
        if isinstance(one, ast.Constant | ast.FormattedValue)
    )


def test_a_command_reads_as_its_words() -> None:
    assert shlex.split(remedies.command("feed", "show", EVIL)) == ["feedq", "feed", "show", EVIL]
    assert remedies.command("feed", "show", "acme/orders") == "feedq feed show acme/orders"


def test_every_status_that_is_trouble_and_every_reason_to_wait_has_one_row() -> None:
    rows = [(one.cause, one.reason) for one in TROUBLES]
    assert len(set(rows)) == len(rows)
    well = {
        Status.STREAMING,
        Status.CONNECTING,
        Status.STARTING,
        Status.STOPPING,
        Status.PAUSED,
        Status.REMOVING,
    }
    assert set(TROUBLED) == set(Status) - well


def test_recover_has_the_table() -> None:
    page = (ROOT / "docs/howto/recover.md").read_text()
    rows = [
        f"| `{one.cause}`{f', `{one.reason}`' if one.reason else ''} | {one.sentence} | {one.remedy} |\n"
        for one in TROUBLES
    ]
    assert "".join(rows) in page
