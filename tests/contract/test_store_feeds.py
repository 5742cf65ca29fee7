"""The store's contract: desired state, its history, and what a person sees of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from feedq.control.store import migrate
from feedq.control.store.feeds import FeedChange
from feedq.control.store.postgresql import PostgresStore
from feedq.core.differences import ABSENT, OptionChange
from feedq.core.model import FeedSpec, LeaseState, Reason, Release, Selector, TargetState, Version
from feedq.errors import Conflict, FeedqError, NotFound, Outdated
from feedq.local.postgres import Postgres
from feedq.telemetry.logs import EventKind
from tests.asking import events_of
from tests.contract.harness import Harness, spec


def kinds(harness: Harness, name: str) -> list[str]:
    return [event.kind for event in events_of(harness.store, name)]


def test_a_declaration_is_read_back_as_it_was_written(harness: Harness) -> None:
    declared = spec(
        "müller/børs 'quoted' \"%s\" :x",
        tenant="müller",
        source={"url": "tcp://h:1", "nested": {"a": [1, 2.5, None, True, "ü"]}},
        sink={"table": 'odd "name"', "key": ["a"]},
        labels={"region": "eu"},
        weight=2.5,
        target_state=TargetState.PAUSED,
    )
    feed = harness.store.feeds.add(declared)
    assert feed.spec == declared
    assert harness.store.feeds.get(declared.name) == feed


def test_columns_keep_the_order_of_the_manifest(harness: Harness) -> None:
    names = ["title", "id", "a_longer_one", "b"]
    declared = spec(sink={"table": "t", "create": True, "columns": {name: f"/{name}" for name in names}})
    added = harness.store.feeds.add(declared)
    assert list(added.spec.sink["columns"]) == names
    assert list(harness.store.feeds.get(added.name).spec.sink["columns"]) == names
    worker = harness.worker()
    harness.run(added, worker)
    turned = {name: f"/{name}" for name in reversed(names)}
    harness.store.feeds.edit(declared.model_copy(update={"sink": {**declared.sink, "columns": turned}}))
    harness.reconcile()
    # The table is there: another order alone is no reason to connect anew.
    assert harness.store.leases.stop_requests(worker.id) == []


@pytest.mark.parametrize("verb", ["get", "view", "restart", "remove"])
def test_an_unknown_name_is_not_found_and_named(harness: Harness, verb: str) -> None:
    with pytest.raises(NotFound, match="acme/typo"):
        getattr(harness.store.feeds, verb)("acme/typo")


def test_an_edit_bumps_the_generation_and_says_what_changed(harness: Harness) -> None:
    feed = harness.feed()
    edited = harness.store.feeds.edit(feed.spec.model_copy(update={"weight": 3.0, "tenant": "acme"}))
    assert edited.generation == feed.generation + 1
    assert edited.updated_at >= feed.updated_at
    newest = events_of(harness.store, feed.name)[0]
    assert newest.kind == EventKind.FEED_EDITED
    assert sorted(newest.detail["changed"]) == ["tenant", "weight"]


def test_history_keeps_what_each_option_was_and_became(harness: Harness) -> None:
    h = harness
    feed = h.feed()
    labels, selector = {"team": "x" * 9_000}, Selector(required={"region": "eu"})
    h.store.feeds.edit(feed.spec.model_copy(update={"weight": 3.0, "labels": labels, "selector": selector}))
    changes = events_of(h.store, feed.name)[0].detail["changes"]
    assert changes["weight"] == [1.0, 3.0]
    assert changes["selector.required.region"] == ["(unset)", "eu"]
    assert changes["labels.team"][0] == "(unset)"
    assert len(changes["labels.team"][1]) < 3_000


def test_one_and_true_are_different_options(harness: Harness) -> None:
    url = spec().source["url"]
    harness.store.feeds.add(spec(source={"url": url, "verify": 1}))
    edited = harness.store.feeds.edit(spec(source={"url": url, "verify": True}))
    assert (edited.generation, harness.store.feeds.get(edited.name).spec.source["verify"] is True) == (
        2,
        True,
    )


def test_an_edit_without_a_change_keeps_the_generation_and_writes_no_history(harness: Harness) -> None:
    feed = harness.feed()
    harness.absorb_edits()
    assert harness.store.feeds.edit(spec()) == feed
    assert kinds(harness, feed.name) == [EventKind.FEED_ADDED]
    assert harness.dirty_feeds() == 0


def test_every_change_marks_the_feed_dirty(harness: Harness) -> None:
    feed = harness.feed()
    feeds = harness.store.feeds
    assert harness.dirty_feeds() == 0
    changes: list[Callable[[], object]] = [
        lambda: feeds.edit(spec(weight=9.0)),
        lambda: feeds.set_target(feed.name, TargetState.PAUSED),
        lambda: feeds.set_target(feed.name, TargetState.RUNNING),
        lambda: feeds.restart(feed.name),
        lambda: feeds.remove(feed.name),
    ]
    for change in changes:
        change()
        assert harness.dirty_feeds() == 1
        harness.absorb_edits()
        assert harness.dirty_feeds() == 0


def test_a_name_is_free_again_as_soon_as_its_feed_is_removed(harness: Harness) -> None:
    worker = harness.worker()
    old = harness.feed("acme/orders")
    harness.run(old, worker)
    harness.store.feeds.remove("acme/orders")
    new = harness.feed("acme/orders")
    assert new.id != old.id
    assert harness.store.feeds.get("acme/orders") == new
    assert [v.feed.id for v in harness.store.feeds.views()] == [old.id, new.id]
    with pytest.raises(Conflict):
        harness.feed("acme/orders")


def test_views_are_by_name_and_filtered_by_worker(harness: Harness) -> None:
    a, b = harness.worker("a"), harness.worker("b")
    for name, worker in [("3", a), ("1", a), ("2", b)]:
        harness.run(harness.feed(name), worker)
    harness.feed("4")
    views = harness.store.feeds.views
    assert [v.feed.name for v in views()] == ["1", "2", "3", "4"]
    assert [v.feed.name for v in views(worker="a")] == ["1", "3"]
    assert views(worker="nobody") == []


def test_declarations_come_by_name_without_the_removed(harness: Harness) -> None:
    made = {name: harness.feed(name, tenant="t" if name < "d" else "u") for name in "cabed"}
    harness.store.feeds.remove("b")
    declared = harness.store.feeds.declared
    assert declared() == [made[name] for name in "acde"]
    assert declared(tenant="t") == [made["a"], made["c"]]
    assert declared(names=("b", "c", "nobody")) == [made["c"]]


def test_history_is_newest_first_and_limited(harness: Harness) -> None:
    feed, worker = harness.feed(), harness.worker()
    key = harness.run(feed, worker)
    harness.store.leases.release(worker.id, [Release(*key, Reason.BACKOFF, error="refused")])
    assert kinds(harness, feed.name) == [
        EventKind.LEASE_RELEASED,
        EventKind.LEASE_CLAIMED,
        EventKind.LEASE_ASSIGNED,
        EventKind.FEED_ADDED,
    ]
    released, claimed = events_of(harness.store, feed.name, limit=2)
    assert (released.epoch, released.worker_id) == (key[1], worker.id)
    assert released.detail["reason"] == "backoff"
    assert released.detail["error"] == "refused"
    assert claimed.at <= released.at


# -- several at once ---------------------------------------------------------------------------------


def test_a_feed_that_cannot_be_changed_keeps_no_other_from_it(harness: Harness) -> None:
    old, changed, kept = harness.feed("old"), harness.feed("changed"), harness.feed("kept")
    harness.store.feeds.restart("changed")
    outcomes = harness.store.feeds.change(
        [
            FeedChange(EventKind.FEED_ADDED, "a", spec("a")),
            FeedChange(EventKind.FEED_ADDED, "kept", spec("kept", weight=9)),
            FeedChange(EventKind.FEED_EDITED, "old", spec("old", weight=2), old.version),
            FeedChange(EventKind.FEED_PAUSED, "changed", expected=changed.version),
            FeedChange(EventKind.FEED_REMOVED, "nobody"),
            FeedChange(EventKind.FEED_RESUMED, "kept"),
            FeedChange(EventKind.FEED_ADDED, "b", spec("b", target_state=TargetState.PAUSED)),
        ]
    )
    assert [type(one) for one in outcomes] == [tuple, Conflict, tuple, Outdated, NotFound, tuple, tuple]
    found = {view.feed.name: view for view in harness.store.feeds.views()}
    assert found.keys() == {"a", "b", "changed", "kept", "old"}
    assert (found["old"].feed.version, found["kept"].feed) == (outcomes[2], kept)
    assert (found["old"].feed.spec.weight, found["old"].feed.generation) == (2.0, old.generation + 1)
    assert found["changed"].feed.spec.target_state is TargetState.RUNNING
    assert [found[name].lease.reason for name in "ab"] == [Reason.NEW, Reason.PAUSED]
    assert kinds(harness, "old") == [EventKind.FEED_EDITED, EventKind.FEED_ADDED]
    assert kinds(harness, "kept") == kinds(harness, "a") == [EventKind.FEED_ADDED]


def test_a_catalog_changes_its_own_feeds_and_what_it_takes_over(harness: Harness) -> None:

    def change(kind: EventKind, name: str, *, catalog: str = "crm", **more: Any) -> Version | FeedqError:
        declared = None if kind is EventKind.FEED_REMOVED else spec(name, **more)
        options = [OptionChange(key, None, value) for key, value in more.items()]
        change = FeedChange(kind, name, declared, catalog=catalog, options=options)
        (outcome,) = harness.store.feeds.change([change])
        return outcome

    mine = harness.feed("mine")
    assert isinstance(change(EventKind.FEED_ADDED, "new"), tuple)
    assert isinstance(change(EventKind.FEED_ADDED, "theirs", catalog="other"), tuple)
    for name, whose in (("mine", "declared by hand"), ("theirs", "made from catalog 'other'")):
        for kind in (EventKind.FEED_EDITED, EventKind.FEED_REMOVED):
            assert f"feed '{name}' was {whose}, and is left unchanged" in str(change(kind, name, weight=9))
    assert harness.store.feeds.get("mine") == mine
    assert isinstance(change(EventKind.FEED_EDITED, "new", weight=9), tuple)
    edited = events_of(harness.store, "new")[0]
    assert (edited.detail["changed"], edited.detail["catalog"]) == (["weight"], "crm")
    mark = OptionChange("catalog", ABSENT, "crm")
    taken = FeedChange(EventKind.FEED_EDITED, "mine", mine.spec, None, "crm", True, [mark])
    harness.store.feeds.change([taken])
    own = harness.store.feeds.get("mine")
    assert (own.catalog, own.generation) == ("crm", mine.generation)  # it runs on as it does
    assert events_of(harness.store, "mine")[0].detail["changed"] == ["catalog"]
    assert harness.store.feeds.declared(catalog="crm") == [own, harness.store.feeds.get("new")]
    assert isinstance(change(EventKind.FEED_REMOVED, "mine"), tuple)


def test_a_feed_declared_anew_waits_until_the_removed_one_has_let_go(harness: Harness) -> None:
    store = harness.store
    worker = harness.worker("w1")
    harness.worker("w2")
    old = store.feeds.add(spec())
    _, sent = harness.reconcile()
    store.leases.claim(sent[0].worker_id, [sent[0].key])

    store.feeds.remove("acme/orders")
    new = store.feeds.add(spec())
    other = store.feeds.add(spec("acme/other"))
    assert new.id != old.id
    _, given = harness.reconcile()
    assert [one.feed_id for one in given] == [other.id], "two would stream from one source"
    assert store.leases.stop_requests(sent[0].worker_id)[0].reason is Reason.REMOVED

    store.leases.release(sent[0].worker_id, [Release(*sent[0].key, Reason.REMOVED)])
    _, given = harness.reconcile()
    assert [one.feed_id for one in given] == [new.id]
    views = {view.feed.id: view.lease.state for view in store.feeds.views()}
    assert views == {new.id: LeaseState.ASSIGNED, other.id: LeaseState.ASSIGNED}
    assert worker.id in {view.worker.id for view in store.workers.views()}


def test_a_feed_declared_anew_starts_when_the_worker_of_the_removed_one_is_gone(harness: Harness) -> None:
    store = harness.store
    worker = harness.worker("w1")
    store.feeds.add(spec())
    _, sent = harness.reconcile()
    store.leases.claim(worker.id, [sent[0].key])
    store.feeds.remove("acme/orders")
    new = store.feeds.add(spec())
    harness.reconcile()
    harness.worker("w2")
    store.workers.leave(worker.id)
    _, given = harness.reconcile()
    assert [one.feed_id for one in given] == [new.id]


SPEC = FeedSpec(name="acme/orders", connector="tcp", source={"url": "tcp://127.0.0.1:1"}, sink={"table": "t"})

MILLION = 10**6


def test_control_databases_give_out_different_numbers_and_a_feed_its_uuid_for_good(
    postgres: Postgres, database_url: str
) -> None:
    other_url = postgres.create_database("identity_of_another")
    stores = []
    for url in (database_url, other_url):
        migrate.upgrade(url)
        stores.append(PostgresStore(url))
    one, other = (store.feeds.add(SPEC) for store in stores)
    try:
        assert min(one.id, other.id, abs(one.id - other.id)) >= MILLION
        assert max(one.id, other.id) < 2**51
        assert one.identity.installation != other.identity.installation
        store = stores[0]
        assert store.feeds.restart(SPEC.name).identity == one.identity
        assert store.feeds.get(SPEC.name).identity == one.identity
        store.feeds.remove(SPEC.name)
        again = store.feeds.add(SPEC)
        assert again.identity.feed != one.identity.feed
        assert again.identity.installation == one.identity.installation
    finally:
        for store in stores:
            store.close()
        postgres.drop_database("identity_of_another")
