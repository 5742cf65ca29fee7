"""Pages of feeds: filters, order and numbers of the database agree with `Feeds.views`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any
from uuid import uuid4

import psycopg2
import pytest
from psycopg2.extras import execute_values

from feedq.control.store import feed_listing
from feedq.control.store.feed_listing import EVERY, FeedListing, TroubledFeeds
from feedq.core.lease import stillness_of
from feedq.core.model import Concern, LeaseState, Load, NewWorker, Reason, Selector, Status
from feedq.core.selection import Selection, SelectionOrder
from feedq.verbs.diagnosis.checks import REASONS, TROUBLED
from feedq.verbs.diagnosis.fleet_checks import summary
from tests.asking import send_heartbeat
from tests.contract.harness import TTL_S, Harness, progress, spec
from tests.fakes.listing import chosen_of, in_order, required_by, tallies_of, troubles_of
from tests.fakes.standing import standing

WANTED = [("running", False), ("paused", False), ("running", True)]
"""Of a feed: what people want of it, and whether it is being removed."""
WORKERS = {"moves": (0.1, 1.0), "lags": (9.0, 1.0), "silent": (0.1, 4.5)}
"""Lag of the loop and age of the last heartbeat, of a ttl of 6 s."""
REFUSED = [(0.0, 0.0, None), (2.0, 1.0, 1.0), (2.0, 1.0, 90.0), (1.0, 2.0, 1.0)]
"""Dead letters and rows a second, and how long ago the latest was refused."""
YES_OR_NO = [False, True]
IDLE = [
    (LeaseState.IDLE, reason, None, False, False, 0, failures, None, is_quarantined, REFUSED[1])
    for reason, failures, is_quarantined in product([None, *Reason], [2, 3], YES_OR_NO)
]
HELD = [
    (state, reason, worker, *says)
    for state, reason, worker, *says in product(
        [s for s in LeaseState if s is not LeaseState.IDLE],
        [None, Reason.FAILED],
        WORKERS,
        YES_OR_NO,
        YES_OR_NO,
        [2, 3],
        [2, 3],
        [None, "the sink is away"],
        YES_OR_NO,
        REFUSED,
    )
]
EVERYTHING = [
    *((WANTED[0], *lease) for lease in [*IDLE, *HELD]),
    *((wanted, *lease) for wanted, lease in product(WANTED[1:], [*IDLE, *HELD[::7]])),
]
"""Every lease there can be of a feed that is to run, as far as a status depends on it, and some of the others."""
PLAIN = [
    (WANTED[0], *lease)
    for lease in [*IDLE, *HELD]
    if lease[2] in (None, "moves")
    and lease[1:3] != (Reason.FAILED, "moves")
    and lease[7] is None
    and not lease[8]
]
SOME = [*PLAIN, *EVERYTHING[::61]]
"""Fewer of them, and every status among these."""


@pytest.fixture
def listing(harness: Harness) -> FeedListing:
    return harness.store.listing


def declare(url: str, harness: Harness, chosen: Sequence[Any]) -> None:
    """One feed for each of these."""
    ids: dict[str | None, str | None] = {None: None}
    for name, (lag_s, age_s) in WORKERS.items():
        worker = NewWorker(uuid4(), f"{name}@host", f"node.{name}", 10_000, "host", 1, "0")
        ids[name] = str(worker.id)
        harness.store.workers.register(worker, ttl_s=TTL_S)
        # As parts of an hour, so that the time that a test takes makes no difference.
        harness.execute(
            "UPDATE feedq.worker SET loop_lag_s = %s, heartbeat_at = now() - make_interval(secs => %s) * 600, "
            "expires_at = now() + make_interval(secs => 6.0 - %s) * 600 WHERE id = %s",
            *(lag_s, age_s, age_s, ids[name]),
        )
    rows = []
    for number, (wanted, state, reason, worker_name, *says, refused) in enumerate(chosen):
        connected, stalled, attempts, failures, sink_error, is_quarantined = says
        rows.append(
            (
                *(number, f"feed-{number:05d}", f"tenant-{number % 3}", *wanted, state, reason),
                *(ids[worker_name], connected, stalled, attempts, failures, sink_error, is_quarantined),
                *(*refused, number * 7 % 101, number % 5),
            )
        )
    with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
        execute_values(
            cursor,
            """
            WITH given (n, name, tenant, target, removed, state, reason, worker_id, connected, stalled,
                attempts, failures, sink_error, quarantined, dead_per_s, rows_per_s, refused_s, records, epoch)
                AS (VALUES %s),
            f AS (
                INSERT INTO feedq.feed (name, tenant, connector, source, sink, target_state, removed_at)
                SELECT name, tenant, 'tcp', '{}', '{}', target, CASE WHEN removed THEN now() END
                FROM given ORDER BY n RETURNING id, name
            ),
            l AS (
                INSERT INTO feedq.lease (feed_id, due_at, state, reason, worker_id, quarantined, epoch,
                    running_since, blame)
                SELECT f.id, CASE state WHEN 'stopping' THEN now() END, state, reason,
                    CAST(worker_id AS uuid), quarantined, epoch, now() + make_interval(secs => epoch - 2),
                    'w9 died'
                FROM f JOIN given USING (name)
            )
            INSERT INTO feedq.progress (feed_id, connected, stalled, attempts, failures, sink_error, dead_per_s,
                rows_per_s, dead_letter_at, records_total, epoch, last_record_at, last_error, last_error_at,
                dead_letter_error)
            SELECT f.id, connected, stalled, attempts, failures, CAST(sink_error AS text), dead_per_s,
                rows_per_s, now() - make_interval(secs => CAST(refused_s AS float8)), records, epoch,
                CASE WHEN connected THEN now() END, 'no answer', now(), 'too long'
            FROM f JOIN given USING (name)
            """,
            rows,
            page_size=len(rows),
        )


@pytest.fixture
def everything(harness: Harness, control_database_url: str) -> Iterator[Harness]:
    declare(control_database_url, harness, SOME)
    with harness.stopped_clock():
        yield harness


def test_a_feed_has_the_status_and_the_reason_that_its_lease_and_its_worker_tell(
    harness: Harness, listing: FeedListing, control_database_url: str
) -> None:
    declare(control_database_url, harness, EVERYTHING)
    with harness.stopped_clock():
        assert_each_stands_as_it_must(harness, listing)


def assert_each_stands_as_it_must(harness: Harness, listing: FeedListing) -> None:
    views, workers = harness.store.feeds.views(), harness.store.workers.views()
    still = {
        one.worker.name: f"its worker {one.worker.name} {said}"
        for one in workers
        if (said := stillness_of(one)) is not None
    }
    assert {view.status for view in views} == set(Status)
    now = harness.store.now()
    for view in views:
        expected = standing(view.feed, view.lease, still.get(view.worker or ""), now=now)
        assert (view.status, view.because) == (expected.status, expected.because), view
    for status in Status:
        found = listing.after(Selection(statuses=(status,), removing=True))
        assert [view.feed.id for view in found] == [view.feed.id for view in views if view.status is status][
            : len(found)
        ], status
        assert {view.status for view in found} == {status}


def test_both_stores_judge_a_worker_by_its_heartbeat_and_not_by_its_feeds(harness: Harness) -> None:
    h = harness
    worker, feed = h.worker("w1"), h.feed()
    key = h.run(feed, worker)
    h.store.leases.report(worker.id, [replace(progress(key), connected=True)])
    assert h.store.feeds.view(feed.name).status is Status.STREAMING
    send_heartbeat(h.store, worker.id, Load(loop_lag_s=12.0), ttl_s=TTL_S)
    view = h.store.feeds.view(feed.name)
    assert (view.status, view.because) == (
        Status.STALLED,
        f"its worker {worker.name} has stood still for 12 s",
    )
    send_heartbeat(h.store, worker.id, Load(), ttl_s=TTL_S)
    assert h.store.feeds.view(feed.name).status is Status.STREAMING
    h.store.leases.report(worker.id, [replace(progress(key), failures=3, error="no route")])
    assert h.store.feeds.views(worker=worker.name)[0].status is Status.FAILING


def test_the_numbers_are_those_of_counting_every_feed(everything: Harness, listing: FeedListing) -> None:
    views, workers = everything.store.feeds.views(), everything.store.workers.views()
    counted = {(t.status, t.reason): t.feeds for t in listing.tallies()}
    assert counted == Counter((view.status, view.lease.reason) for view in views)
    assert summary(listing.tallies(), workers) == summary(tallies_of(views), workers)


def test_pages_follow_each_other_in_any_order_and_direction(
    everything: Harness, listing: FeedListing
) -> None:
    everything.execute(
        "UPDATE feedq.progress SET event_at = now() - make_interval(secs => epoch) WHERE epoch > 1"
    )
    views = everything.store.feeds.views()
    for order, reverse in product(SelectionOrder, (False, True)):
        found: list[str] = []
        while page := listing.ordered(EVERY, order, reverse=reverse, offset=len(found), limit=100):
            found += [view.feed.name for view in page]
        assert found == [v.feed.name for v in in_order(views, order, reverse=reverse)], (order, reverse)


def test_counts_are_of_what_is_chosen(everything: Harness, listing: FeedListing) -> None:
    views = everything.store.feeds.views()
    chosen = Selection(worker="moves@host", tenant="tenant-1", removing=True)
    expected = chosen_of(chosen, views)
    assert expected
    assert sum(tally.feeds for tally in listing.tallies(chosen)) == len(expected)
    assert [view.feed.id for view in listing.after(chosen)] == [view.feed.id for view in expected]


@pytest.mark.parametrize(
    "search",
    ["acme/ORDERS", "100%_of", "it's", "back\\slash", "region", "%", "_", "Größe", "a:b", ":search"],
)
def test_a_search_is_plain_text(harness: Harness, listing: FeedListing, search: str) -> None:
    feeds = harness.store.feeds
    feeds.add(spec("acme/orders"))
    feeds.add(spec("100%_of-it's-back\\slash:search"))
    feeds.add(spec("größe-a:b", labels={"region": "eu"}))
    found = [view.feed.name for view in listing.after(EVERY, text_=search)]
    assert sum(tally.feeds for tally in listing.tallies(EVERY, text_=search)) == len(found)
    everywhere = [f"{v.feed.name} {dict(v.feed.spec.labels)}" for v in feeds.views()]
    assert found == [
        v.feed.name
        for v, text in zip(feeds.views(), everywhere, strict=True)
        if search.lower() in text.lower().replace("\\\\", "\\")
    ]
    assert len(found) == 1


def test_a_text_is_found_in_the_same_feeds_where_few_show_it_and_where_many_do(
    everything: Harness, listing: FeedListing, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything.execute("UPDATE feedq.progress SET last_error = 'No Route to host' WHERE epoch = 3")
    for text in ("feed-0001", "TENANT-1", "moves@", "no_capa", "sink is away", "no route", "nothing"):
        found = []
        for most in (0, len(SOME) + 1):
            monkeypatch.setattr(feed_listing, "LOOKED_UP_MAX", most)
            by_name = listing.after(EVERY, text_=text)
            assert by_name == listing.ordered(EVERY, SelectionOrder.NAME, text_=text)
            count = sum(tally.feeds for tally in listing.tallies(EVERY, text_=text))
            found.append((count, [view.feed.id for view in by_name]))
        assert found[0] == found[1], text
        assert bool(found[0][1]) is (text != "nothing"), text


def test_a_feed_that_lost_its_lease_row_counts_as_waiting(harness: Harness, listing: FeedListing) -> None:
    feed = harness.store.feeds.add(spec())
    harness.delete_lease(feed.id)
    assert [view.status for view in listing.after(EVERY)] == [Status.WAITING]
    found = [(t.status, t.reason, t.records_total) for t in listing.tallies()]
    assert found == [(Status.WAITING, Reason.NEW, 0)]


def test_no_feeds_are_an_empty_page(harness: Harness, listing: FeedListing) -> None:
    assert (listing.after(EVERY), listing.tallies()) == ([], [])


SELECTIONS = (
    Selection(removing=True),
    Selection(),
    Selection(names=("f00003", "f00001", "nobody")),
    Selection(tenant="acme"),
    Selection(labels={"region": "eu"}),
    Selection(labels={"region": "eu", "plan": "gold"}),
    Selection(worker="moves"),
    Selection(statuses=(Status.PAUSED, Status.STALLED)),
    Selection(connector="tcp"),
    Selection(connector="nothing"),
    Selection(match="*1?"),
    Selection(match="%"),
    Selection(match="f_1"),
    Selection(failing=True),
    Selection(failing=True, match="f*1", tenant="acme"),
    Selection(unmet=True),
    Selection(dead_letters=True),
)


def test_the_database_chooses_what_a_selection_does(everything: Harness, listing: FeedListing) -> None:
    feeds = everything.store.feeds
    for view in listing.selected(Selection())[::3]:
        labels = {"region": "eu"} | ({"plan": "gold"} if view.feed.id % 2 else {})
        feeds.edit(view.feed.spec.model_copy(update={"tenant": "acme", "labels": labels}))
    everything.execute(
        "INSERT INTO feedq.unmet (feed_id, kind, since, bound, found) "
        "SELECT id, 'max_silence', now(), '20', 30 FROM feedq.feed WHERE mod(id, 3) = 0"
    )
    everything.execute("UPDATE feedq.progress SET dead_letters = mod(feed_id, 4) - 1")
    views = feeds.views()
    for selection in SELECTIONS:
        chosen = [view.feed.id for view in chosen_of(selection, views)]
        assert [view.feed.id for view in listing.selected(selection)] == chosen, selection
        assert [feed.id for feed in listing.chosen(selection, limit=2)] == chosen[:2]
    assert all(chosen_of(one, views) for one in (*SELECTIONS[3:6], *SELECTIONS[-2:]))


def test_the_database_counts_what_is_wrong_with_feeds_and_what_they_want(
    everything: Harness, listing: FeedListing
) -> None:
    feeds = everything.store.feeds
    for view in listing.selected(Selection())[::2]:
        selector = Selector(required={"region": "eu" if view.feed.id % 3 else "us"})
        feeds.edit(view.feed.spec.model_copy(update={"selector": selector}))
    everything.execute(
        "INSERT INTO feedq.unmet (feed_id, kind, since, bound, found) "
        "SELECT id, 'max_silence', now() - make_interval(secs => mod(id, 900)), '20', 30 FROM feedq.feed "
        "WHERE mod(id, 3) = 0"
    )
    everything.execute(
        "UPDATE feedq.progress SET dead_letters = mod(feed_id, 4) - 1; "
        "UPDATE feedq.lease SET blamed = mod(feed_id, 5), "
        "blamed_at = now() - make_interval(days => CAST(mod(feed_id, 3) AS int))"
    )
    views, now = feeds.views(), everything.store.now()
    asked = {"each": 2, "tenants": 2}
    tallies, found = listing.survey(TROUBLED, REASONS, **asked)
    assert tallies == listing.tallies()
    expected = troubles_of(views, TROUBLED, REASONS, **asked, now=now)
    # Since when feeds are as they are that nobody streams, history says.
    told = [replace(one, since=one.since or there.since) for one, there in zip(expected, found, strict=True)]
    assert [(replace(one, views=()), names(one)) for one in found] == [
        (replace(one, views=()), names(one)) for one in told
    ]
    assert [one for one in found if one.since is None and one.cause in TROUBLED] == []
    assert {one.cause for one in found} == {*TROUBLED, *Concern}
    by_labels = partial(sorted, key=lambda one: sorted(one.required.items()))
    assert by_labels(listing.placing(each=3)) == by_labels(required_by(views, each=3))


def names(group: TroubledFeeds) -> list[str]:
    return [view.feed.name for view in group.views]
