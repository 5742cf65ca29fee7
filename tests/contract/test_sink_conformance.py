"""What every sink must do, whatever its database: fence, land exactly once, and know what it did."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from feedq.embedded.postgres import Postgres
from feedq.errors import SinkUnavailable
from feedq.sinks.base import Blocked, Fenced, Landing, Superseded, Written
from tests.contract.sink_harness import (
    LOCK_TIMEOUT_S,
    PATIENCE_S,
    RAW,
    PostgresSinkHarness,
    SinkHarness,
    batch,
    empty_database,
    fence,
    lines,
    request,
    write,
)

HARNESSES: dict[str, Callable[[str], SinkHarness]] = {"postgresql": PostgresSinkHarness}


@pytest.fixture(params=sorted(HARNESSES))
def harness(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[SinkHarness]:
    """Each kind of sink in turn."""
    made = HARNESSES[request.param](empty_database(postgres))
    yield made
    made.close()


# -- fencing -----------------------------------------------------------------------------------------


def test_a_feed_that_was_never_seen_has_no_cursor(harness: SinkHarness) -> None:
    assert fence(harness.sink(), 1, 1) == Fenced(1, 1, None, 0)


def test_a_successor_resumes_after_what_its_predecessor_committed(harness: SinkHarness) -> None:
    sink = harness.sink()
    fence(sink, 1, 1)
    sink.write([write(1, 1, batch(b"1", b"2", cursor={"at": 2}))])
    sink.write([write(1, 1, batch(b"3", cursor={"at": 3}))])
    assert fence(harness.sink(), 1, 2) == Fenced(1, 2, {"at": 3}, 3)


def test_the_owner_may_fence_its_own_epoch_again(harness: SinkHarness) -> None:
    sink = harness.sink()
    fence(sink, 1, 4)
    sink.write([write(1, 4, batch(b"1", cursor=1))])
    assert fence(sink, 1, 4) == Fenced(1, 4, 1, 1)
    assert sink.write([write(1, 4, batch(b"2", cursor=2))]).landed == {(1, 4): 1}


def test_an_epoch_that_has_passed_is_superseded(harness: SinkHarness) -> None:
    sink = harness.sink()
    fence(sink, 1, 9)
    assert sink.fence([request(1, 8)], lock_timeout_s=LOCK_TIMEOUT_S) == [Superseded(1, 8, 9)]
    assert fence(sink, 1, 10).epoch == 10


def test_an_epoch_that_another_worker_has_fenced_is_superseded(harness: SinkHarness) -> None:
    """A control database that forgot an epoch gives it out a second time, while its first owner sleeps."""
    first, second = harness.sink(), harness.sink()
    fence(first, 1, 1)
    first.write([write(1, 1, batch(b"1", cursor=1))])
    assert second.fence([request(1, 1)], lock_timeout_s=LOCK_TIMEOUT_S) == [Superseded(1, 1, 1)]
    assert fence(second, 1, 2).cursor == 1
    assert first.write([write(1, 1, batch(b"2", cursor=2))]).landed == {}


def test_many_feeds_are_fenced_at_once_each_with_its_own_outcome(harness: SinkHarness) -> None:
    sink = harness.sink()
    fence(sink, 500, 9)
    sink.write([write(500, 9, batch(b"1", cursor="there"))])
    outcomes = sink.fence(
        [request(feed_id, 9 if feed_id == 500 else 2) for feed_id in range(2_500, 0, -1)],
        lock_timeout_s=LOCK_TIMEOUT_S,
    )
    expected = [Fenced(n, 2, None, 0) for n in range(1, 2_501)]
    expected[499] = Fenced(500, 9, "there", 1)
    assert sorted(outcomes, key=lambda outcome: outcome.feed_id) == expected


def test_environments_do_not_know_of_one_another(harness: SinkHarness) -> None:
    blue, green = harness.sink(environment="blue"), harness.sink(environment="green")
    fence(blue, 1, 7)
    blue.write([write(1, 7, batch(b"1", cursor=1))])
    assert fence(green, 1, 1) == Fenced(1, 1, None, 0)
    assert blue.write([write(1, 7, batch(b"2", cursor=2))]).landed == {(1, 7): 1}


def test_nothing_to_fence_is_no_work(harness: SinkHarness) -> None:
    assert harness.sink().fence([], lock_timeout_s=0) == []


# -- writing -----------------------------------------------------------------------------------------


def test_records_land_with_their_feed_and_epoch_and_the_checkpoint_beside_them(harness: SinkHarness) -> None:
    sink = harness.sink()
    fence(sink, 1, 1)
    written = sink.write([write(1, 1, lines(b'{"a":1}', b'{"a":2}'), batch(b'{"a":3}', cursor=[3]))])
    assert written == Written(landed={(1, 1): 3}, dead={}, fenced=(), unusable={})
    assert harness.landed() == Counter(("feed/1", 1, f'{{"a": {n}}}') for n in (1, 2, 3))
    assert fence(sink, 1, 2) == Fenced(1, 2, [3], 3)


def test_a_batch_without_records_moves_the_cursor(harness: SinkHarness) -> None:
    sink = harness.sink()
    fence(sink, 1, 1)
    assert sink.write([write(1, 1, batch(cursor="later"))]).landed == {(1, 1): 0}
    assert fence(sink, 1, 2) == Fenced(1, 2, "later", 0)


def test_a_stale_epoch_cannot_write_a_record_or_a_checkpoint(harness: SinkHarness) -> None:
    old, new = harness.sink(), harness.sink()
    fence(old, 1, 1)
    old.write([write(1, 1, batch(b"1", cursor=1))])
    fence(new, 1, 2)
    written = old.write([write(1, 1, batch(b"2", cursor=2))])
    assert written == Written(landed={}, dead={}, fenced=((1, 1),), unusable={})
    assert harness.landed() == Counter({("feed/1", 1, "1"): 1})
    assert fence(new, 1, 2).cursor == 1


def test_an_epoch_that_was_never_fenced_cannot_write(harness: SinkHarness) -> None:
    sink = harness.sink()
    fence(sink, 1, 5)
    assert sink.write([write(1, 6, batch(b"1", cursor=1)), write(2, 1, batch(b"1"))]).landed == {}
    assert harness.landed() == Counter()


def test_a_fenced_feed_does_not_hold_back_the_others_of_its_group(harness: SinkHarness) -> None:
    sink = harness.sink()
    for feed_id in (1, 2, 3):
        fence(sink, feed_id, 1)
    fence(harness.sink(), 2, 2)
    written = sink.write([write(n, 1, batch(b"%d" % n, cursor=n)) for n in (3, 2, 1)])
    assert written == Written(landed={(3, 1): 1, (1, 1): 1}, dead={}, fenced=((2, 1),), unusable={})
    assert harness.landed() == Counter([("feed/1", 1, "1"), ("feed/3", 1, "3")])
    assert [fence(sink, n, 3).cursor for n in (1, 2, 3)] == [1, None, 3]


def test_feeds_of_one_group_land_in_different_tables(harness: SinkHarness) -> None:
    sink = harness.sink()
    landings = [Landing("one", "json"), Landing("two", "text"), Landing("three", "bytes")]
    for n, landing in enumerate(landings):
        fence(sink, n, 1, landing)
    sink.write([write(n, 1, batch(b'"x"'), landing=landing) for n, landing in enumerate(landings)])
    assert [set(harness.landed(landing)) for landing in landings] == [
        {("feed/0", 1, '"x"')},
        {("feed/1", 1, '"x"')},
        {("feed/2", 1, "\\x227822")},
    ]


def test_a_cursor_comes_back_as_it_was_given(harness: SinkHarness) -> None:
    sink = harness.sink()
    for epoch, cursor in enumerate([0, -1, 2**80, 0.1, "", "ö\\u0000\n", [], {"a": [None, True]}, None], 1):
        fence(sink, 1, epoch)
        sink.write([write(1, epoch, batch(b"1", cursor=cursor))])
        assert fence(sink, 1, epoch + 1).cursor == cursor


def test_a_cursor_that_cannot_be_kept_stops_its_feed_and_no_other(harness: SinkHarness) -> None:
    sink = harness.sink()
    fence(sink, 1, 1)
    fence(sink, 2, 1)
    written = sink.write([write(1, 1, batch(b"1", cursor="a\0b")), write(2, 1, batch(b"2", cursor=2))])
    assert written.landed == {(2, 1): 1}
    assert "NUL" in written.unusable[1, 1]
    assert harness.landed() == Counter({("feed/2", 1, "2"): 1})


def test_an_unreachable_database_is_unavailable_and_no_password_is_told(harness: SinkHarness) -> None:
    sink = harness.unreachable()
    for attempt in (
        lambda: sink.fence([request(1, 1)], lock_timeout_s=1),
        lambda: sink.write([write(1, 1, batch(b"1"))]),
        lambda: sink.unblock([uuid4()]),
    ):
        with pytest.raises(SinkUnavailable, match=r":\*\*\*@127\.0\.0\.1") as raised:
            attempt()
        assert "refused" in str(raised.value)


def test_a_closed_sink_can_be_used_again(harness: SinkHarness) -> None:
    sink = harness.sink()
    fence(sink, 1, 1)
    sink.close()
    sink.close()
    assert sink.write([write(1, 1, batch(b"1"))]).landed == {(1, 1): 1}


# -- a predecessor in the way ------------------------------------------------------------------------


def test_a_fence_waits_for_a_commit_in_flight_and_reads_the_cursor_it_leaves(harness: SinkHarness) -> None:
    worker = uuid4()
    fence(harness.sink(worker_id=worker), 1, 1)
    frozen = harness.frozen([write(1, 1, batch(b"1", cursor="left"))], worker_id=worker)
    outcomes: list[object] = []
    successor = threading.Thread(target=lambda: outcomes.append(fence(harness.sink(), 1, 2)))
    successor.start()
    frozen.thaw()
    successor.join(PATIENCE_S)
    assert outcomes == [Fenced(1, 2, "left", 1)]


def test_a_frozen_predecessor_blocks_its_own_feeds_only_and_is_named(harness: SinkHarness) -> None:
    zombie = uuid4()
    old = harness.sink(worker_id=zombie)
    for feed_id in (2, 3):
        fence(old, feed_id, 1)
    frozen = harness.frozen([write(n, 1, batch(b"1", cursor=1)) for n in (2, 3)], worker_id=zombie)
    outcomes = harness.sink().fence([request(n, 2) for n in (1, 2, 3, 4)], lock_timeout_s=LOCK_TIMEOUT_S)
    assert sorted(outcomes, key=lambda outcome: outcome.feed_id) == [
        Fenced(1, 2, None, 0),
        Blocked(2, 2, zombie),
        Blocked(3, 2, zombie),
        Fenced(4, 2, None, 0),
    ]
    frozen.thaw()


def test_a_lock_timeout_of_nothing_still_fences_what_is_free(harness: SinkHarness) -> None:
    zombie = uuid4()
    fence(harness.sink(worker_id=zombie), 1, 1)
    frozen = harness.frozen([write(1, 1, batch(b"1"))], worker_id=zombie)
    outcomes = harness.sink().fence([request(1, 2), request(2, 1)], lock_timeout_s=0)
    assert set(outcomes) == {Blocked(1, 2, zombie), Fenced(2, 1, None, 0)}
    frozen.thaw()


def test_unblocking_ends_the_zombies_transaction_and_it_can_write_nothing_more(harness: SinkHarness) -> None:
    zombie = uuid4()
    fence(harness.sink(worker_id=zombie), 1, 1)
    frozen = harness.frozen([write(1, 1, batch(b'"zombie"', cursor="z"))], worker_id=zombie)
    successor = harness.sink()
    assert successor.fence([request(1, 2)], lock_timeout_s=LOCK_TIMEOUT_S) == [Blocked(1, 2, zombie)]
    # Its writer, and the session that it fenced with.
    assert successor.unblock([zombie]) == 2
    assert fence(successor, 1, 2) == Fenced(1, 2, None, 0)
    successor.write([write(1, 2, batch(b'"heir"', cursor="h"))])

    assert isinstance(frozen.thaw(), Exception)
    woken = harness.sink(worker_id=zombie)
    assert woken.write([write(1, 1, batch(b'"zombie"', cursor="z"))]).fenced == ((1, 1),)
    assert harness.landed() == Counter({("feed/1", 2, '"heir"'): 1})
    assert fence(successor, 1, 3).cursor == "h"


def test_unblocking_spares_other_workers_and_oneself(harness: SinkHarness) -> None:
    me, other = uuid4(), uuid4()
    sink, bystander = harness.sink(worker_id=me), harness.sink(worker_id=other)
    fence(sink, 1, 1)
    fence(bystander, 2, 1)
    assert sink.unblock([]) == 0
    assert sink.unblock([me, uuid4()]) == 0
    assert bystander.write([write(2, 1, batch(b"1"))]).landed == {(2, 1): 1}


# -- a commit whose answer was lost ------------------------------------------------------------------


@pytest.mark.parametrize("happened", [True, False])
def test_a_lost_answer_is_decided_by_the_checkpoint(harness: SinkHarness, happened: bool) -> None:
    fence(harness.sink(), 1, 1)
    fence(harness.sink(), 2, 1)
    writes = [write(n, 1, batch(b"%d" % n, cursor=n)) for n in (1, 2)]
    sink, unknown = harness.lost(writes, happened=happened)
    assert list(unknown.writes) == writes
    settled = sink.settle(unknown)
    if happened:
        assert settled == unknown.written == Written({(1, 1): 1, (2, 1): 1}, {}, (), {})
    else:
        assert settled is None
        sink.write(writes)
    assert harness.landed() == Counter([("feed/1", 1, "1"), ("feed/2", 1, "2")])
    assert [fence(sink, n, 2).cursor for n in (1, 2)] == [1, 2]


@pytest.mark.parametrize("happened", [True, False])
def test_a_successors_fence_does_not_hide_what_became_of_a_commit(
    harness: SinkHarness, happened: bool
) -> None:
    fence(harness.sink(), 1, 1)
    sink, unknown = harness.lost([write(1, 1, batch(b"1", cursor="mine"))], happened=happened)
    heir = fence(harness.sink(), 1, 2)
    assert heir.cursor == ("mine" if happened else None)
    settled = sink.settle(unknown)
    assert settled is not None
    assert (settled.landed, settled.fenced) == (({(1, 1): 1}, ()) if happened else ({}, ((1, 1),)))


def test_a_feed_that_a_successor_wrote_since_is_fenced_and_the_others_still_tell(
    harness: SinkHarness,
) -> None:
    fence(harness.sink(), 1, 1)
    fence(harness.sink(), 2, 1)
    sink, unknown = harness.lost([write(n, 1, batch(b"1", cursor=1)) for n in (1, 2)], happened=True)
    heir = harness.sink()
    fence(heir, 1, 2)
    heir.write([write(1, 2, batch(b"2", cursor=2))])
    assert sink.settle(unknown) == Written({(2, 1): 1}, {}, ((1, 1),), {})


def test_settling_does_not_return_while_the_commit_may_still_arrive(harness: SinkHarness) -> None:
    fence(harness.sink(), 1, 1)
    writes = [write(1, 1, batch(b"1", cursor=1))]
    sink, unknown, let_the_commit_arrive = harness.stranded(writes)
    assert sink.settle(unknown) is None
    let_the_commit_arrive()
    assert sink.write(writes).landed == {(1, 1): 1}
    assert harness.landed() == Counter({("feed/1", 1, "1"): 1})


def test_another_sink_can_settle_too(harness: SinkHarness) -> None:
    fence(harness.sink(), 1, 1)
    _, unknown = harness.lost([write(1, 1, batch(b"1", cursor=1))], happened=True)
    assert harness.sink().settle(unknown) == unknown.written


# -- records that cannot land ------------------------------------------------------------------------

BAD = b'"\\u0000"'
"""JSON, and yet refused by the database."""


@pytest.mark.parametrize("make", [batch, lines])
@pytest.mark.parametrize(
    "bad", [{0}, {9}, {4}, {0, 9}, {3, 4, 5}, set(range(10))], ids=lambda bad: "-".join(map(str, sorted(bad)))
)
def test_bad_records_go_to_the_dead_letters_and_all_others_land(
    harness: SinkHarness, bad: set[int], make: Callable[..., object]
) -> None:
    sink = harness.sink()
    fence(sink, 1, 1)
    records = [BAD if n in bad else b"%d" % n for n in range(10)]
    written = sink.write([write(1, 1, make(*records, cursor="end"))])  # type: ignore[arg-type]
    assert written == Written({(1, 1): 10 - len(bad)}, {(1, 1): len(bad)}, (), {})
    assert harness.landed() == Counter(("feed/1", 1, str(n)) for n in range(10) if n not in bad)
    assert harness.dead() == [("feed/1", 1, BAD, "end")] * len(bad)
    assert fence(sink, 1, 2) == Fenced(1, 2, "end", 10 - len(bad))


def test_a_bad_record_of_one_feed_costs_the_others_of_the_group_nothing(harness: SinkHarness) -> None:
    sink = harness.sink()
    feeds = range(1, 41)
    sink.fence([request(n, 1) for n in feeds], lock_timeout_s=PATIENCE_S)
    fence(harness.sink(), 33, 2)
    written = sink.write(
        [write(n, 1, lines(b"1", BAD if n in (1, 17, 40) else b"2", b"3", cursor=n)) for n in feeds]
    )
    assert written.fenced == ((33, 1),)
    assert written.dead == {(1, 1): 1, (17, 1): 1, (40, 1): 1}
    assert sum(written.landed.values()) == 39 * 3 - 3 == harness.landed().total()
    assert {(feed, cursor) for feed, _, _, cursor in harness.dead()} == {
        (f"feed/{n}", n) for n in (1, 17, 40)
    }


def test_a_dead_letter_keeps_the_cursor_of_its_own_batch(harness: SinkHarness) -> None:
    sink = harness.sink()
    fence(sink, 1, 1)
    sink.write([write(1, 1, batch(b"1", cursor=1), batch(b"{", cursor=2), batch(b"3", cursor=3))])
    assert harness.dead() == [("feed/1", 1, b"{", 2)]


def test_a_lost_answer_covers_the_dead_letters_too(harness: SinkHarness) -> None:
    fence(harness.sink(), 1, 1)
    writes = [write(1, 1, batch(b"1", BAD, cursor=1))]
    sink, unknown = harness.lost(writes, happened=False)
    assert sink.settle(unknown) is None
    assert harness.dead() == []
    sink.write(writes)
    assert len(harness.dead()) == 1


def test_landings_are_reported_before_anything_is_fenced(harness: SinkHarness) -> None:
    sink = harness.sink()
    missing = Landing("missing", "json", (("a", "/a"),))
    outcomes = sink.fence([request(1, 1, missing), request(2, 1, RAW)], lock_timeout_s=1)
    assert [type(outcome).__name__ for outcome in outcomes] == ["Unusable", "Fenced"]
    assert sink.write([write(1, 1, batch(b"{}"), landing=missing)]).landed == {}
