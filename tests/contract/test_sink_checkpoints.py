"""The checkpoint of a feed: whose it is, that it goes back with its sink, and that a person may change its cursor.

In every kind of sink; what takes rows that a test changes by hand, in those that have some.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from feedq.core.json_texts import read_exactly
from feedq.core.model import JSON, Identity, StartCursor
from feedq.errors import Conflict, SinkUnavailable
from feedq.sinks.base import (
    Checkpoint,
    CheckpointChange,
    Fenced,
    FenceOutcome,
    FenceRequest,
    Judge,
    Sink,
    Target,
    Unusable,
    anybody,
)
from feedq.sinks.mapping import sources_of
from feedq.sinks.postgresql import PostgresSession
from feedq.sinks.session import SinkSession
from tests.contract.sink_harness import PostgresSinkHarness, SqliteHarness
from tests.contract.sink_stage import PATIENCE_S, RAW, batch, landed, rows_of, write
from tests.proxy import Fault

Harness = PostgresSinkHarness | SqliteHarness
SEQ = Target("orders", "json", sources_of({"seq": "/seq"}), key=("seq",))


@pytest.fixture
def harness(kind: str, request: pytest.FixtureRequest) -> Harness:
    made: Harness = request.getfixturevalue(f"{kind}_sink")
    return made


of_every_kind = pytest.mark.parametrize("kind", ["postgresql", "sqlite"])


class Installation:
    """One that declares feeds, each with a uuid of its own."""

    def __init__(self, harness: Harness) -> None:
        self.id = uuid4()
        self.harness = harness
        self.sink: Sink = harness.sink()

    def feed(self, feed_id: int, name: str, *, epoch: int = 1, target: Target = RAW) -> Feed:
        return Feed(self, FenceRequest(feed_id, name, epoch, target, Identity(uuid4(), self.id)))

    def known(self, *names: str) -> list[Checkpoint]:
        return self.sink.checkpoints(names or None)


class Feed:
    """A feed that lands numbers, each write a commit of its own, and remembers where it left its checkpoint."""

    def __init__(self, installation: Installation, asked: FenceRequest) -> None:
        self.asked = asked
        self.owner: Sink = installation.harness.sink(worker_id=uuid4())
        self.person: Sink = installation.harness.sink(role="cli")
        self.left: UUID | None = None

    def try_to_fence(self, *, epoch: int | None = None) -> FenceOutcome:
        self.asked = replace(self.asked, epoch=epoch or self.asked.epoch)
        (outcome,) = self.owner.fence([self.asked], lock_timeout_s=PATIENCE_S)
        return outcome

    def fence(self, *, epoch: int | None = None) -> Fenced:
        outcome = self.try_to_fence(epoch=epoch)
        assert isinstance(outcome, Fenced), outcome
        self.left = outcome.commit_id
        return outcome

    def why_not(self) -> str:
        outcome = self.try_to_fence()
        assert isinstance(outcome, Unusable), outcome
        return outcome.error

    def land(self, *numbers: int) -> str:
        records = [b'{"seq":%d}' % number for number in numbers]
        received = batch(*records, cursor=numbers[-1])
        one = write(
            self.asked.feed_id, self.asked.epoch, received, target=self.asked.target, continues=self.left
        )
        written = self.owner.write([replace(one, feed=self.asked.feed)])
        if written.landed:
            self.left = written.commit_id
        return "landed" if written.landed else "lost" if written.lost else "postponed"

    def change(
        self,
        choose: Callable[[Checkpoint | None], StartCursor],
        *,
        instead_of: Checkpoint | None = None,
        judge: Judge = anybody,
    ) -> None:
        asked = self.asked
        change = CheckpointChange(asked.feed_id, asked.feed, asked.identity, choose, instead_of, judge)
        self.person.change_checkpoint(change)

    def rewind(self, cursor: Callable[[JSON], JSON] | int, *, judge: Judge = anybody) -> None:
        def choose(own: Checkpoint | None) -> StartCursor:
            assert own is not None
            return StartCursor(cursor(own.cursor) if callable(cursor) else cursor, own.records)

        self.change(choose, judge=judge)

    def adopt(self, old: Checkpoint) -> None:
        self.change(lambda own: StartCursor(old.cursor, old.records), instead_of=old)


def running(harness: Harness, *, epoch: int = 1, target: Target = RAW) -> Feed:
    """Feed 1, fenced."""
    feed = Installation(harness).feed(1, "feed/1", epoch=epoch, target=target)
    feed.fence()
    return feed


# -- whose it is -------------------------------------------------------------------------------------


@of_every_kind
def test_a_feed_finds_its_own_checkpoint_and_the_sink_says_whose_it_is(harness: Harness) -> None:
    ours = Installation(harness)
    feed = ours.feed(1, "acme/a")
    feed.fence()
    feed.land(7)
    assert feed.fence(epoch=2).cursor == 7
    (known,) = ours.known("acme/a")
    assert (known.feed_id, known.feed, known.epoch, known.cursor, known.records) == (1, "acme/a", 2, 7, 1)
    assert Identity(known.feed_uuid, known.installation) == feed.asked.identity
    assert ours.known("acme/b") == []
    assert ours.known() == [known]


@of_every_kind
def test_a_number_that_another_feed_had_leads_to_no_checkpoint_of_its(harness: Harness) -> None:
    """A control database made anew gave out the same numbers: a new feed began at the cursor of another."""
    before = Installation(harness)
    big = before.feed(1, "acme/big")
    big.fence()
    big.land(318)
    said = Installation(harness).feed(1, "acme/new").why_not()
    assert f"another feed under the number 1: feed 'acme/big' of installation {before.id}" in said
    assert big.land(319) == "landed"


@of_every_kind
def test_a_name_that_another_installation_has_is_not_begun_beside_it(harness: Harness) -> None:
    one, two = Installation(harness), Installation(harness)
    theirs, ours = one.feed(1, "acme/a"), two.feed(2**40, "acme/a")
    theirs.fence()
    theirs.land(5)
    for _ in range(2):
        said = ours.why_not()
        assert f"feed 'acme/a' of installation {one.id} (1 records" in said
        assert f"this installation is {two.id}" in said
        assert "feedq feed adopt acme/a" in said
    assert theirs.land(6) == "landed"
    assert two.feed(2**40 + 1, "acme/b").fence().cursor is None


@of_every_kind
def test_a_feed_declared_again_under_its_name_begins_anew(harness: Harness) -> None:
    ours = Installation(harness)
    first = ours.feed(1, "acme/a")
    first.fence()
    first.land(5)
    assert ours.feed(2, "acme/a").fence().cursor is None
    assert [known.cursor for known in ours.known("acme/a") if known.feed_id == 1] == [5]


@of_every_kind
def test_a_checkpoint_that_is_adopted_goes_on_and_its_old_owner_stops(harness: Harness) -> None:
    one, two = Installation(harness), Installation(harness)
    theirs, ours = one.feed(1, "acme/a"), two.feed(2, "acme/a")
    theirs.fence()
    theirs.land(5)
    (old,) = two.known("acme/a")
    ours.adopt(old)
    assert ours.fence().cursor == 5
    assert ours.land(6) == "landed"
    assert theirs.land(6) == "lost"
    assert f"installation {two.id}" in theirs.why_not()
    (now,) = two.known("acme/a")
    assert (now.feed_id, now.cursor, now.records) == (2, 6, 2)


@of_every_kind
def test_a_checkpoint_that_is_written_to_meanwhile_is_not_adopted(harness: Harness) -> None:
    one, two = Installation(harness), Installation(harness)
    theirs = one.feed(1, "acme/a")
    theirs.fence()
    theirs.land(5)
    (old,) = two.known("acme/a")
    theirs.land(6)
    with pytest.raises(Conflict, match="is being written to"):
        two.feed(2, "acme/a").adopt(old)
    assert [known.feed_id for known in two.known("acme/a")] == [1]


@of_every_kind
def test_an_owner_that_runs_goes_on_from_the_checkpoint_that_it_is_given(harness: Harness) -> None:
    ours = Installation(harness)
    first, second = ours.feed(1, "acme/a"), ours.feed(2, "acme/a", epoch=3)
    first.fence()
    first.land(5)
    second.fence()
    (old,) = [known for known in ours.known("acme/a") if known.feed_id == 1]
    second.adopt(old)
    assert second.land(1) == "lost"
    assert second.fence().cursor == 5


@of_every_kind
def test_a_feed_is_given_a_cursor_before_it_has_begun(harness: Harness) -> None:
    feed = Installation(harness).feed(1, "acme/a")
    feed.change(lambda own: StartCursor({"at": 2**70}, 4))
    assert feed.fence() == Fenced(1, 1, {"at": 2**70}, 4, is_given=True)


@of_every_kind
@pytest.mark.parametrize("cursor", [b"1700000000.123456791", b'{"b":18446744073709551619,"a":[1.50,1e5]}'])
def test_a_cursor_comes_back_digit_for_digit(harness: Harness, cursor: bytes) -> None:
    feed = running(harness)
    received = batch(b"1", cursor=read_exactly(cursor))
    feed.owner.write([write(1, 1, received, target=RAW, continues=feed.left)])
    assert msgspec.json.encode(feed.fence().cursor) == cursor
    (known,) = feed.person.checkpoints(["feed/1"])
    assert msgspec.json.encode(known.cursor) == cursor


@of_every_kind
def test_many_feeds_are_told_apart_at_once(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedq.sinks.fencing.FENCED_AT_ONCE", 50)
    one, two, numbers = Installation(harness), Installation(harness), range(1, 121)
    one.sink.fence([one.feed(n, f"f/{n}").asked for n in numbers], lock_timeout_s=PATIENCE_S)
    ours = [two.feed(10_000 + n, f"f/{n if n % 2 else -n}").asked for n in numbers]
    outcomes = {o.feed_id: o for o in two.sink.fence(ours, lock_timeout_s=PATIENCE_S)}
    wrong = [n for n in numbers if isinstance(outcomes[10_000 + n], Unusable)]
    assert wrong == list(range(1, 121, 2))


# -- a sink that goes back ---------------------------------------------------------------------------


def back_up(harness: Harness) -> None:
    for table in ("raw", "feedq_checkpoint"):
        harness.query(f"CREATE TABLE saved_{table} AS SELECT * FROM {table}")


def restore(harness: Harness) -> None:
    for table in ("raw", "feedq_checkpoint"):
        harness.query(f"DELETE FROM {table}")
        harness.query(f"INSERT INTO {table} SELECT * FROM saved_{table}")


def payloads(*numbers: int) -> list[str]:
    return [f'{{"seq": {number}}}' for number in numbers]


@of_every_kind
def test_a_restored_backup_is_noticed_by_the_next_write_and_filled_up_from_its_cursor(
    harness: Harness,
) -> None:
    feed = running(harness)
    assert feed.land(1) == "landed"
    back_up(harness)
    assert [feed.land(n) for n in (2, 3)] == ["landed", "landed"]
    restore(harness)
    assert feed.land(4) == "lost"
    assert feed.fence() == Fenced(1, 1, 1, 1)
    assert [feed.land(n) for n in (2, 3, 4)] == ["landed"] * 3
    assert landed(harness) == rows_of(1, 1, *payloads(1, 2, 3, 4))


# -- a cursor that a person changes --------------------------------------------------------------------


@of_every_kind
@pytest.mark.parametrize("step", ["fence", "checkpoints_of"])
def test_a_cursor_that_is_given_as_a_feed_is_fenced_is_the_one_that_it_goes_on_from(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Given just after the epoch is raised, or before the checkpoint is read where that is another statement."""
    feed = running(harness)
    feed.land(*range(1, 6))
    kind = harness.sink(role="cli").session_type
    take, is_rewound = getattr(kind, step), False

    def meddle(session: SinkSession, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_rewound
        monkeypatch.undo()
        taken = take(session, *args, **kwargs) if step == "fence" else None
        feed.rewind(2)
        is_rewound = True
        return taken if step == "fence" else take(session, *args, **kwargs)

    monkeypatch.setattr(kind, step, meddle)
    cursor = feed.fence(epoch=2).cursor
    if feed.land(6) == "lost":
        cursor = feed.fence().cursor
    assert cursor == (2 if is_rewound else 5)
    assert is_rewound or kind is PostgresSession
    assert feed.land(7) == "landed"


@of_every_kind
def test_the_checkpoint_of_another_feed_is_left_alone(harness: Harness) -> None:
    feed = running(harness)
    feed.land(1)
    feed.asked = replace(feed.asked, identity=replace(feed.asked.identity, feed=uuid4()))
    with pytest.raises(Conflict, match="checkpoint of another feed under its number"):
        feed.rewind(0)
    assert feed.land(2) == "landed"


@of_every_kind
def test_changes_beside_a_busy_writer_leave_no_mix(harness: Harness) -> None:
    """No number is missing, whatever the order in which commits and changes took the checkpoint."""
    harness.query("CREATE TABLE orders (seq BIGINT PRIMARY KEY)")
    feed = running(harness, target=SEQ)
    stop, failed = threading.Event(), list[BaseException]()

    def stream() -> None:
        at = 2
        try:
            while not stop.is_set() or at < 400:
                stop.wait(0.002)  # as a writer gathers; SQLite would let nobody else in
                with suppress(SinkUnavailable):  # another one's transaction was in the way for too long
                    if feed.land(at + 1, at + 2) == "landed":
                        at += 2
                    else:
                        at = int(str(feed.fence().cursor))
        except BaseException as error:
            failed.append(error)

    def back(before: JSON) -> JSON:
        return max(0, before - 5) if isinstance(before, int) else 0

    feed.land(1, 2)
    thread = threading.Thread(target=stream, daemon=True)
    thread.start()
    for _ in range(8):
        feed.rewind(back)
    stop.set()
    thread.join(6 * PATIENCE_S)  # it has two hundred transactions to commit
    assert (thread.is_alive(), failed) == (False, [])
    found = [seq for (seq,) in harness.query("SELECT seq FROM orders ORDER BY seq")]
    assert found == list(range(1, found[-1] + 1))


@pytest.mark.parametrize("kind", ["postgresql"])
@pytest.mark.parametrize(
    ("fault", "cursors"), [(Fault.CUT_BEFORE, {5}), (Fault.CUT_AFTER, {2}), (Fault.STRAND, {2, 5})]
)
def test_a_change_whose_answer_is_lost_happened_or_not_and_says_so(
    harness: PostgresSinkHarness, fault: Fault, cursors: set[int]
) -> None:
    feed = running(harness)
    feed.land(*range(1, 6))
    feed.person = harness.sink(role="cli", url=harness.proxy.url)
    feed.person.checkpoints([])
    trap = harness.proxy.arm(fault, "COMMIT")
    with pytest.raises(SinkUnavailable, match="has either the new cursor or the old one; look again"):
        feed.rewind(2)
    trap.release()
    (found,) = harness.sink(role="cli").checkpoints(["feed/1"])
    assert found.cursor in cursors
    assert feed.fence().cursor == found.cursor
