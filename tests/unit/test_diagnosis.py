"""What is said of feeds that wait and of workers that do not suffice: from values alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from feedq.control.store.fleet_state import FleetState
from feedq.core.lease import standing
from feedq.core.model import (
    Feed,
    FeedSpec,
    FeedView,
    Lease,
    LeaseState,
    Load,
    Reason,
    Status,
    Worker,
    WorkerState,
    WorkerTarget,
    WorkerView,
)
from feedq.core.placement.base import Rules
from feedq.verbs.diagnosis.checks import Check, Level
from feedq.verbs.diagnosis.doctor import check_open_files
from feedq.verbs.diagnosis.feed_checks import feed_checks
from feedq.verbs.diagnosis.fleet_checks import Overview, fleet_checks, placing_checks, summary
from feedq.verbs.diagnosis.waiting_checks import explain
from feedq.verbs.troubles import REASONS, TROUBLED
from feedq.verbs.wording import NAMED_MAX
from tests.fakes.memory.listing import required_by, tallies_of, troubles_of
from tests.fakes.sink import IDENTITY

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


def test_a_cordoned_worker_that_has_the_labels_is_offered() -> None:
    waiting = feed(reason=Reason.NO_MATCH, required={"region": "eu"})
    resting = worker("two", labels={"region": "eu"}, target=WorkerTarget.CORDONED)
    sentence = said(waiting, worker("one"), resting)
    assert sentence.endswith("two has, and is cordoned: `feedq worker uncordon two`")


def test_a_full_fleet_is_said_with_its_places() -> None:
    waiting = feed(reason=Reason.NO_CAPACITY)
    sentence = said(waiting, worker("one", feeds=10), worker("two", feeds=10))
    assert sentence.startswith("all 20 places on 2 workers are taken or promised; start another worker")


def test_the_cap_of_a_tenant_is_named_when_it_is_what_keeps_a_feed_waiting() -> None:
    waiting = feed(reason=Reason.NO_CAPACITY, tenant="acme")
    rules = Rules(tenant_caps={"acme": 3})
    assert "the 3 feeds of tenant 'acme' that FEEDQ_TENANT_CAPS admits" in said(
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
    waiting = feed(reason=reason, retry_at=NOW + timedelta(seconds=seconds), attempts=6, held_for="one")
    assert expected in said(waiting, worker("one"))


def test_a_move_says_where_to_and_how_long_the_owner_has() -> None:
    target = worker("two")
    moving = feed(
        state=LeaseState.STOPPING,
        reason=Reason.MOVED,
        worker_id=uuid4(),
        promised_to=target.worker.id,
        stop_by=NOW + timedelta(seconds=30),
    )
    assert (
        said(moving, target) == "it is being moved to two; its owner has until 12:00:30Z (in 30s) to let go"
    )
    assert "a worker that is gone by now" in said(moving)


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
    return {c.name: c.detail for c in placing_checks(required, workers, RULES)}


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


def test_what_nobody_could_look_at_is_not_called_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found([], [worker("one")])["sinks of workers"].level is Level.NOT_CHECKED
    monkeypatch.setattr("socket.gethostname", lambda: "h")
    limits: dict[int, int | None] = {1: None, 2: 10_000}
    monkeypatch.setattr("feedq.verbs.diagnosis.doctor._limit_of", limits.__getitem__)
    one, two = worker("one"), worker("two")
    two = replace(two, worker=replace(two.worker, pid=2))
    hidden, well = check_open_files([one, two])
    assert (hidden.level, well.level) == (Level.NOT_CHECKED, Level.OK)
    assert "the limit of one cannot be read" in hidden.detail
    assert [check.level for check in check_open_files([one])] == [Level.NOT_CHECKED]


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
