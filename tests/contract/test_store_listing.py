"""Pages of feeds: filters, order and numbers of the database agree with `Feeds.views` and `lease.status`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from uuid import uuid4

import psycopg2
import pytest

from feedq.diagnosis.fleet import overview, summary
from feedq.model import LeaseState, NewWorker, Reason, Status, TargetState
from feedq.store.listing import PostgresListing, Query, Sort
from tests.contract.harness import TTL_S, PostgresHarness, spec

STATES = [
    (state, reason, connected, stalled)
    for state, reason in [
        *product([LeaseState.IDLE], Reason),
        *product([s for s in LeaseState if s is not LeaseState.IDLE], [None, Reason.EDITED]),
    ]
    for connected, stalled in product([False, True], repeat=2)
]
"""Every lease there can be, as far as a status depends on it; times paused or not, removed or not."""


@pytest.fixture
def listing(postgres_harness: PostgresHarness, control_database_url: str) -> Iterator[PostgresListing]:
    made = PostgresListing(control_database_url)
    yield made
    made.close()


def declare(url: str, harness: PostgresHarness) -> None:
    """One feed for every combination."""
    worker = NewWorker(uuid4(), "w1@host", "node.w1", 10_000, "host", 1, "0")
    harness.store.workers.register(worker, ttl_s=TTL_S)
    with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
        for number, (target, removed, lease) in enumerate(product(TargetState, [False, True], STATES)):
            state, reason, connected, stalled = lease
            cursor.execute(
                """
                WITH f AS (
                    INSERT INTO feedq.feed (name, tenant, connector, source, sink, target_state, removed_at)
                    VALUES (%s, %s, 'tcp', '{}', '{}', %s, CASE WHEN %s THEN now() END) RETURNING id
                )
                INSERT INTO feedq.lease
                    (feed_id, state, reason, worker_id, connected, stalled, records_total, last_record_at, epoch)
                SELECT id, %s, %s, %s, %s, %s, %s, CASE WHEN %s THEN now() END, %s FROM f
                """,
                (
                    f"feed-{number:04d}",
                    f"tenant-{number % 3}",
                    target.value,
                    removed,
                    state.value,
                    reason and reason.value,
                    None if state is LeaseState.IDLE else str(worker.id),
                    connected,
                    stalled,
                    number * 7 % 101,
                    connected,
                    number % 5,
                ),
            )


@pytest.fixture
def everything(postgres_harness: PostgresHarness, control_database_url: str) -> PostgresHarness:
    declare(control_database_url, postgres_harness)
    return postgres_harness


def test_the_database_sees_the_status_that_the_policy_sees(
    everything: PostgresHarness, listing: PostgresListing
) -> None:
    views = everything.store.feeds.views()
    assert {view.status for view in views} == set(Status)
    for status in Status:
        found = [view.feed.id for view in listing.page(Query(status=status)).views]
        assert found == [view.feed.id for view in views if view.status is status], status


def test_the_numbers_are_those_of_counting_every_feed(
    everything: PostgresHarness, listing: PostgresListing
) -> None:
    views, workers = everything.store.feeds.views(), everything.store.workers.views()
    counted = {(t.status, t.reason): t.feeds for t in listing.tallies()}
    assert counted == Counter((view.status, view.lease.reason) for view in views)
    assert summary(listing.tallies(), workers) == overview(views, workers)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("sort", Sort)
def test_pages_follow_each_other_in_any_order(
    everything: PostgresHarness, listing: PostgresListing, sort: Sort, descending: bool
) -> None:
    names: list[str] = []
    while True:
        page = listing.page(Query(sort=sort, descending=descending, limit=50, offset=len(names)))
        if not page.views:
            break
        names += [view.feed.name for view in page.views]
        assert page.matching == len(everything.store.feeds.views())
    assert len(names) == len(set(names)) == page.matching
    whole = [view.feed.name for view in listing.page(Query(sort=sort, descending=descending)).views]
    assert whole == names


def test_order_is_by_the_value_and_then_by_name(
    everything: PostgresHarness, listing: PostgresListing
) -> None:
    views = listing.page(Query(sort=Sort.RECORDS, descending=True)).views
    keys = [(-view.lease.records_total, view.feed.name) for view in views]
    assert keys == sorted(keys)
    latest = listing.page(Query(sort=Sort.LAST_RECORD, descending=True)).views
    # Feeds that never got a record stand at the end, whatever the order.
    assert latest[0].lease.last_record_at is not None
    assert latest[-1].lease.last_record_at is None


def test_filters_narrow_the_page_and_its_numbers(
    everything: PostgresHarness, listing: PostgresListing
) -> None:
    views = everything.store.feeds.views()
    page = listing.page(Query(worker="w1@host", tenant="tenant-1"))
    expected = [v for v in views if v.worker == "w1@host" and v.feed.spec.tenant == "tenant-1"]
    assert [view.feed.id for view in page.views] == [view.feed.id for view in expected]
    assert page.matching == sum(t.feeds for t in page.tallies) == len(expected)


def test_the_numbers_beside_a_status_are_those_of_all_statuses(
    everything: PostgresHarness, listing: PostgresListing
) -> None:
    page = listing.page(Query(status=Status.FAILED, limit=1))
    assert {t.status for t in page.tallies} == set(Status)
    assert len(page.views) == 1 < page.matching


@pytest.mark.parametrize(
    "search",
    ["acme/ORDERS", "100%_of", "it's", "back\\slash", "region", "%", "_", "Größe", "a:b", ":search"],
)
def test_a_search_is_plain_text(
    postgres_harness: PostgresHarness, listing: PostgresListing, search: str
) -> None:
    feeds = postgres_harness.store.feeds
    feeds.add(spec("acme/orders"))
    feeds.add(spec("100%_of-it's-back\\slash:search"))
    feeds.add(spec("größe-a:b", labels={"region": "eu"}))
    found = [view.feed.name for view in listing.page(Query(search=search)).views]
    everywhere = [f"{v.feed.name} {dict(v.feed.spec.labels)}" for v in feeds.views()]
    assert found == [
        v.feed.name
        for v, text in zip(feeds.views(), everywhere, strict=True)
        if search.lower() in text.lower().replace("\\\\", "\\")
    ]
    assert len(found) == 1


def test_a_feed_that_lost_its_lease_row_counts_as_waiting(
    postgres_harness: PostgresHarness, listing: PostgresListing
) -> None:
    feed = postgres_harness.store.feeds.add(spec())
    postgres_harness.delete_lease(feed.id)
    page = listing.page(Query())
    assert [view.status for view in page.views] == [Status.WAITING]
    assert [(t.status, t.reason, t.records_total) for t in page.tallies] == [(Status.WAITING, Reason.NEW, 0)]


def test_no_feeds_are_an_empty_page(postgres_harness: PostgresHarness, listing: PostgresListing) -> None:
    page = listing.page(Query())
    assert (page.views, page.tallies, page.matching) == ([], [], 0)
    assert page.now.tzinfo is not None
