"""Many owners of the same feeds in one PostgreSQL database, at once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from uuid import uuid4

import pytest

from feedq.local.postgres import Postgres
from feedq.sinks.base import Fenced, Target
from tests.contract.sink_harness import (
    PATIENCE_S,
    PostgresSinkHarness,
    empty_database,
    lines,
    request,
    write,
)

KEYED = Target("keyed", "json", (), ("payload",))


@pytest.fixture
def harness(postgres: Postgres) -> Iterator[PostgresSinkHarness]:
    made = PostgresSinkHarness(empty_database(postgres))
    yield made
    made.close()


def run_together(*works: Callable[[], object]) -> None:
    """Run them in threads, and raise what any of them raised."""
    errors: list[BaseException] = []

    def guard(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guard, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive(), "stuck"
    if errors:
        raise errors[0]


def test_writers_and_fences_over_the_same_feeds_in_any_order_do_not_deadlock(
    harness: PostgresSinkHarness,
) -> None:
    feeds, owner = range(1, 31), uuid4()
    harness.sink(worker_id=owner).fence([request(n, 1) for n in feeds], lock_timeout_s=PATIENCE_S)
    before = harness.query("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")

    def writer(seed: int) -> None:
        rng, sink = random.Random(seed), harness.sink()
        for _ in range(25):
            order = rng.sample(feeds, 25)
            written = sink.write([write(n, 1, lines(b"1", cursor=seed)) for n in order])
            assert written.landed == {(n, 1): 1 for n in order}

    def fencer(seed: int) -> None:
        rng, sink = random.Random(seed), harness.sink(worker_id=owner)
        for _ in range(25):
            outcomes = sink.fence([request(n, 1) for n in rng.sample(feeds, 25)], lock_timeout_s=PATIENCE_S)
            assert all(isinstance(outcome, Fenced) for outcome in outcomes)

    run_together(lambda: writer(1), lambda: writer(2), lambda: fencer(3))
    assert harness.landed().total() == 2 * 25 * 25
    assert harness.query("SELECT sum(records) FROM feedq_checkpoint") == [(2 * 25 * 25,)]
    harness.query("SELECT pg_stat_force_next_flush()")
    assert (
        harness.query("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == before
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_owners_that_take_feeds_from_one_another_land_every_record_once(
    harness: PostgresSinkHarness, seed: int
) -> None:
    """Each owner fences feeds under ever larger epochs and writes on from their cursors until it is fenced."""
    epochs = count(1)
    feeds = range(1, 7)

    def own(seed: int) -> None:
        rng, sink = random.Random(seed), harness.sink()
        for _ in range(12):
            mine = rng.sample(feeds, 3)
            epoch = next(epochs)
            outcomes = sink.fence([request(n, epoch) for n in mine], lock_timeout_s=PATIENCE_S)
            at = {o.feed_id: int(str(o.cursor or 0)) for o in outcomes if isinstance(o, Fenced)}
            for _ in range(4):
                group = []
                for feed_id, cursor in at.items():
                    upto = cursor + rng.randint(1, 3)
                    records = [b"%d" % n for n in range(cursor + 1, upto + 1)]
                    group.append(write(feed_id, epoch, lines(*records, cursor=upto)))
                written = sink.write(group)
                at = {w.feed_id: int(str(w.cursor)) for w in group if w.key in written.landed}
                assert {w.key for w in group} == set(written.landed) | set(written.fenced)

    run_together(*(lambda s=s: own(s) for s in (10 * seed, 10 * seed + 1, 10 * seed + 2)))
    landed: dict[str, Counter[int]] = {}
    for feed, _, payload in harness.landed().elements():
        landed.setdefault(feed, Counter())[int(payload)] += 1
    checkpoints = harness.query("SELECT feed, cursor, records FROM feedq_checkpoint WHERE records > 0")
    assert {feed: (records, records) for feed, _, records in checkpoints} == {
        feed: (cursor, landed[feed].total()) for feed, cursor, _ in checkpoints
    }
    assert landed == {feed: Counter(range(1, cursor + 1)) for feed, cursor, _ in checkpoints}
