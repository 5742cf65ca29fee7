"""The control plane over a database in memory: one pass is one decision, and messages leave after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from feedq.control import reconcile as control
from feedq.control.reconcile import reconcile
from feedq.control.store.passes import ReconcilePass
from feedq.core import limits
from feedq.core.limits import DISPATCH_TIMEOUT_S
from feedq.core.model import (
    Assignment,
    FeedSpec,
    LeaseState,
    Load,
    NewWorker,
    ProgressReport,
    Reason,
    Release,
    Selector,
    TargetState,
    Worker,
    WorkerTarget,
)
from feedq.core.placement import rebalancing
from feedq.core.roles import AccessRole, Caller
from feedq.errors import Conflict, InvalidInput, NotFound, Unavailable
from feedq.settings import Settings
from feedq.verbs.fleet import WorkerAction, act_on_worker, find_worker
from feedq.verbs.registry import At
from tests.asking import send_heartbeat
from tests.fakes.control import SteppedStore, current
from tests.fakes.fleet import move_feed

pytestmark = pytest.mark.usefixtures("control")

SETTINGS = Settings.model_construct(settle_s=0.0)


@pytest.fixture
def store() -> SteppedStore:
    made = current().fresh_store()
    made.clock.advance(60)  # the grace period after the start is over
    return made


def add_worker(
    store: SteppedStore, name: str = "a", *, capacity: int = 10, number: int | None = None
) -> Worker:
    worker_id = uuid4() if number is None else UUID(int=number)
    new = NewWorker(worker_id, name, f"node.{name}", capacity, "host", 1, "0")
    return store.workers.register(new, ttl_s=SETTINGS.ttl_s)


def add_feeds(store: SteppedStore, count: int) -> list[int]:
    return [
        store.feeds.add(FeedSpec(name=f"f{i}", connector="tcp", source={}, sink={"table": "t"})).id
        for i in range(count)
    ]


def run(store: SteppedStore, settings: Settings = SETTINGS) -> tuple[control.PassReport, list[Assignment]]:
    sent: list[Assignment] = []
    report = reconcile(store, sent.extend, settings)
    assert report is not None
    return report, sent


def test_a_pass_places_what_waits_and_sends_one_message_each(store: SteppedStore) -> None:
    worker = add_worker(store)
    ids = add_feeds(store, 3)
    report, sent = run(store)
    assert [a.key for a in sent] == [(feed_id, 1) for feed_id in ids]
    assert {a.queue for a in sent} == {worker.queue}
    assert (report.edits, len(report.assignments), report.did_something) == (0, 3, True)


def test_no_message_leaves_before_the_commit(store: SteppedStore) -> None:
    add_worker(store)
    add_feeds(store, 1)
    seen: list[LeaseState] = []

    def look(assignments: Sequence[Assignment]) -> None:
        seen.extend(v.lease.state for v in store.feeds.views())

    reconcile(store, look, SETTINGS)
    assert seen == [LeaseState.ASSIGNED]


def test_no_message_leaves_when_the_commit_fails(store: SteppedStore) -> None:
    add_worker(store)
    add_feeds(store, 1)
    store.control.commits_to_fail = 1
    with pytest.raises(Unavailable):
        reconcile(store, _refuse, SETTINGS)
    assert [a.key for a in run(store)[1]] == [(1, 1)], "the epoch that was rolled back was never heard of"


def test_passes_in_a_row_are_bounded_and_leave_the_rest_to_others(
    store: SteppedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "EDITS_PER_PASS", 1)
    add_feeds(store, 5)
    run(store)
    for view in store.feeds.views():
        store.feeds.set_target(view.feed.name, TargetState.PAUSED)
    wakes = store.control.wakes
    report = reconcile(store, _refuse, SETTINGS, passes=3)
    assert report is not None
    assert (report.edits, report.more) == (3, True)
    assert store.control.wakes == wakes + 1


def _refuse(assignments: Sequence[Assignment]) -> None:
    pytest.fail(f"sent {assignments}")


def test_an_idle_fleet_writes_no_history(store: SteppedStore) -> None:
    add_worker(store)
    add_feeds(store, 2)
    run(store)
    before = store.control.observe("SELECT count(*) FROM feedq.event")
    for _ in range(5):
        run(store)
    assert store.control.observe("SELECT count(*) FROM feedq.event") == before


def test_what_was_edited_is_looked_at_over_several_passes(
    store: SteppedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_feeds(store, 5)
    run(store)
    for view in store.feeds.views():
        store.feeds.restart(view.feed.name)
    store.feeds.set_target("f0", TargetState.PAUSED)
    monkeypatch.setattr(control, "EDITS_PER_PASS", 2)
    passes = [run(store)[0] for _ in range(3)]
    assert [(p.edits, p.more) for p in passes] == [(2, True), (2, True), (1, False)]
    assert store.control.observe("SELECT id FROM feedq.feed WHERE dirty") == []


def test_a_full_worker_gets_what_is_promised_to_it_while_another_is_silent(store: SteppedStore) -> None:
    silent = add_worker(store, "silent", capacity=1)
    ids = add_feeds(store, 3)
    run(store)
    store.clock.advance(DISPATCH_TIMEOUT_S + 1)
    send_heartbeat(store, silent.id, Load(), ttl_s=SETTINGS.ttl_s)
    full, other = add_worker(store, "full", capacity=2), add_worker(store, "other")
    for name in ("f1", "f2"):
        move_feed(store, name, "full", SETTINGS)
    report, sent = run(store)
    assert report.overdue == 1
    assert {a.feed_id: a.worker_id for a in sent} == {ids[0]: other.id, ids[1]: full.id, ids[2]: full.id}


def test_a_newcomer_is_sent_no_more_than_it_connects_soon_and_the_rest_when_these_are_there(
    store: SteppedStore,
) -> None:
    settings = Settings.model_construct(settle_s=0.0, host_connects_per_s={"*": 60.0})
    old = add_worker(store, "old", capacity=100)
    add_feeds(store, 60)
    _, sent = run(store, settings)
    store.leases.claim(old.id, [a.key for a in sent])
    new = add_worker(store, "new", capacity=100)
    report, _ = run(store, settings)
    assert report.moves == 15, "half a second of half of the pace"
    assert run(store, settings)[0].moves == 0, "they are still under way"
    asked = store.leases.stop_requests(old.id)
    store.leases.release(old.id, [Release(*r.key, r.reason) for r in asked])
    report, sent = run(store, settings)
    assert ({a.worker_id for a in sent}, report.moves) == ({new.id}, 0), "and they are not connected yet"
    store.leases.claim(new.id, [a.key for a in sent])
    store.control.wakes = 0
    connected = [ProgressReport(*a.key, 0, 0, 0, None, None, True, False, 0, None) for a in sent]
    store.leases.report(new.id, connected)
    assert store.control.wakes
    assert run(store, settings)[0].moves == 15


# -- verbs -------------------------------------------------------------------------------------------


def test_a_worker_is_found_by_its_name_or_its_id_and_the_beginning_of_either(store: SteppedStore) -> None:
    a = add_worker(store, "a@host", number=0xA << 124)
    add_worker(store, "b@host", number=0xB << 124)
    for name in ("a@host", "a", str(a.id), str(a.id)[:8], str(a.id).upper()):
        assert find_worker(store, name).worker.id == a.id


def test_an_unknown_worker_is_not_found_and_the_living_are_named(store: SteppedStore) -> None:
    add_worker(store, "a@host")
    with pytest.raises(NotFound, match=r"'z'.*a@host"):
        find_worker(store, "z")


@pytest.mark.parametrize("names", [("a", "a"), ("a@host", "a@other")])
def test_a_name_that_means_two_workers_is_refused_and_both_are_named(
    store: SteppedStore, names: tuple[str, str]
) -> None:
    for name in names:
        add_worker(store, name)
    with pytest.raises(InvalidInput, match=f"2 workers.*{names[0]}.*{names[1]}"):
        find_worker(store, "a")


def wanting(store: SteppedStore) -> At:
    return At(
        store, SETTINGS, Caller("a test", AccessRole.ADMIN), lambda name: pytest.fail("asked for a sink")
    )


def test_nothing_is_wanted_of_a_worker_that_is_ending(store: SteppedStore) -> None:
    store.workers.drain(add_worker(store, "a").id)
    for action in WorkerAction:
        with pytest.raises(Conflict, match="is stopping"):
            act_on_worker(wanting(store), name="a", action=action)


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        ({"capacity": 0}, "only runs jobs"),
        ({"labels": {"region": "us"}}, "region=eu"),
        ({"target": WorkerTarget.DRAINED}, "uncordon"),
        ({"tenant_feeds": 1}, "at the cap of its tenant"),
    ],
)
def test_a_move_to_a_worker_that_may_not_have_the_feed_is_refused(
    store: SteppedStore, worker: dict[str, Any], says: str
) -> None:
    labels = worker.get("labels", {"region": "eu"})
    new = NewWorker(uuid4(), "b", "node.b", worker.get("capacity", 9), "host", 1, "0", labels)
    b = store.workers.register(new, ttl_s=SETTINGS.ttl_s)
    spec = FeedSpec(
        name="f",
        connector="tcp",
        source={},
        sink={"table": "t"},
        tenant="acme",
        selector=Selector(required={"region": "eu"}),
    )
    for number in range(worker.get("tenant_feeds", 0)):
        store.feeds.add(spec.model_copy(update={"name": f"other{number}"}))
        run(store)
    store.feeds.add(spec)
    if "target" in worker:
        store.workers.set_target(b.id, worker["target"])
    settings = SETTINGS.model_copy(update={"tenant_caps": {"acme": 1}})
    with pytest.raises(Conflict, match=says):
        move_feed(store, "f", "b", settings)


def test_what_is_promised_to_a_worker_takes_its_room(store: SteppedStore) -> None:
    add_worker(store, "b", capacity=1)
    add_feeds(store, 2)
    move_feed(store, "f0", "b", SETTINGS)
    with pytest.raises(Conflict, match="full"):
        move_feed(store, "f1", "b", SETTINGS)


def test_a_fleet_that_was_found_even_is_not_looked_through_again(
    store: SteppedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_worker(store, "a")
    add_worker(store, "b")
    add_feeds(store, 4)
    for a in run(store)[1]:
        store.leases.claim(a.worker_id, [a.key])
    run(store)
    monkeypatch.setattr(ReconcilePass, "movable", lambda *_, **__: pytest.fail("looked for what could move"))
    monkeypatch.setattr(rebalancing, "donors", lambda *_, **__: pytest.fail("looked for donors"))
    run(store)


def test_what_is_under_way_counts_among_the_moves_of_a_pass(store: SteppedStore) -> None:
    settings = Settings.model_construct(settle_s=0.0, moves_per_pass=3)
    old = add_worker(store, "old", capacity=100)
    add_feeds(store, 20)
    _, sent = run(store, settings)
    store.leases.claim(old.id, [a.key for a in sent])
    add_worker(store, "new", capacity=100)
    assert [run(store, settings)[0].moves for _ in range(3)] == [3, 0, 0]


# -- a worker has died ---------------------------------------------------------------------------------


def die_with(store: SteppedStore, feeds: int) -> Worker:
    """A worker that ran so many feeds has died, and another is there."""
    victim = add_worker(store, "victim", capacity=feeds)
    add_feeds(store, feeds)
    _, sent = run(store)
    store.leases.claim(victim.id, [a.key for a in sent])
    heir = add_worker(store, "heir", capacity=feeds)
    for _ in range(round(SETTINGS.ttl_s) + 1):
        store.clock.advance(1)
        send_heartbeat(store, heir.id, heir.load, ttl_s=SETTINGS.ttl_s)
    return heir


def test_the_first_feeds_of_a_dead_worker_are_placed_before_anything_else_is_done(
    store: SteppedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PLACED_FIRST", 2)
    heir = die_with(store, 5)
    store.feeds.set_target("f4", TargetState.PAUSED)
    report, sent = run(store)
    assert (report.workers_gone, report.leases_freed, report.edits, report.more) == (1, 5, 0, True)
    assert [a.worker_id for a in sent] == [heir.id] * 2
    report, sent = run(store)
    assert (report.edits, len(sent), report.more) == (1, 2, False), "one of the five is paused by now"


def test_a_pass_that_only_places_leaves_all_else_to_the_next(store: SteppedStore) -> None:
    worker = add_worker(store, "w", capacity=5)
    first, second, _ = add_feeds(store, 3)
    _, sent = run(store)
    store.leases.claim(worker.id, [a.key for a in sent])
    store.leases.release(worker.id, [Release(first, 1, Reason.RELEASED)])
    store.feeds.set_target("f1", TargetState.PAUSED)
    given: list[Assignment] = []
    report = reconcile(store, given.extend, SETTINGS, placing_only=True)
    assert report is not None
    assert ([a.feed_id for a in given], report.edits) == ([first], 0)
    report, sent = run(store)
    assert (sent, report.edits) == ([], 1)
    assert store.feeds.view("f1").lease.state is LeaseState.STOPPING
    assert store.feeds.view("f1").feed.id == second


def test_passes_in_a_row_place_all_feeds_of_a_dead_worker_and_report_it_as_one(
    store: SteppedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PLACED_FIRST", 2)
    die_with(store, 5)
    wakes = store.control.wakes
    sent: list[Assignment] = []
    report = reconcile(store, sent.extend, SETTINGS, passes=control.PASSES_IN_A_ROW)
    assert report is not None
    assert (report.workers_gone, report.leases_freed, report.edits) == (1, 5, 0)
    assert len(sent) == len({a.feed_id for a in sent}) == 5
    assert report.assignments == tuple(sent)
    assert report.can_wait
    assert store.control.wakes == wakes, "whoever asked has all else done in a moment"
    report, _ = run(store)
    assert (report.can_wait, report.more) == (False, False)


def test_what_the_fast_path_leaves_does_not_wait(
    store: SteppedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PLACED_FIRST", 2)
    die_with(store, 20)
    wakes = store.control.wakes
    report = reconcile(store, lambda _: None, SETTINGS, passes=2)
    assert report is not None
    assert (len(report.assignments), report.more, report.can_wait) == (6, True, False)
    assert store.control.wakes == wakes + 1


def test_what_the_first_pass_committed_is_sent_though_the_second_fails(
    store: SteppedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PLACED_FIRST", 2)
    die_with(store, 5)
    sent: list[Assignment] = []
    assign = ReconcilePass.assign
    calls = iter(range(10))

    def assign_and_lose_the_second_commit(
        self: ReconcilePass, pairs: Sequence[tuple[int, UUID]]
    ) -> list[Assignment]:
        if next(calls) == 1:
            store.control.commits_to_fail = 1
        return assign(self, pairs)

    monkeypatch.setattr(ReconcilePass, "assign", assign_and_lose_the_second_commit)
    with pytest.raises(Unavailable):
        reconcile(store, sent.extend, SETTINGS, passes=2)
    assert len(sent) == 2
