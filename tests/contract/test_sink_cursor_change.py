"""A cursor that a person changes while its owner writes: the old one with all that landed, or the new one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from feedq.embedded.postgres import Postgres
from feedq.errors import Conflict, InvalidInput, SinkUnavailable
from feedq.model import JSON, ChangedCursor, Identity
from feedq.sinks.base import CursorChange, Fenced, FenceRequest, LandedRows, Sink, Target
from feedq.sinks.cursor_change import KEPT
from feedq.sinks.mapping import ColumnRule, sources_of
from feedq.testing.sink_stage import PATIENCE_S, batch, write
from tests.contract.sink_harness import (
    GeneralSqlHarness,
    MemoryHarness,
    PostgresSinkHarness,
    SqliteHarness,
    empty_database,
)
from tests.proxy import Fault

Harness = PostgresSinkHarness | SqliteHarness | MemoryHarness
RealHarness = PostgresSinkHarness | SqliteHarness
COLUMNS: dict[str, str | ColumnRule] = {"feed": "$feed", "seq": "/seq"}
SEQ = Target("orders", "json", sources_of(COLUMNS))
ID = 1
FEED = f"feed/{ID}"


def made(kind: str, request: pytest.FixtureRequest, directory: Path) -> Harness:
    if kind == "memory":
        return MemoryHarness()
    if kind == "sqlite":
        return SqliteHarness(directory / "sink.sqlite3")
    postgres: Postgres = request.getfixturevalue("postgres")
    return (PostgresSinkHarness if kind == "postgresql" else GeneralSqlHarness)(empty_database(postgres))


@pytest.fixture(params=["postgresql", "general", "sqlite", "memory"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    found = made(request.param, request, tmp_path)
    yield found
    found.close()


@pytest.fixture(params=["postgresql", "general", "sqlite"])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealHarness]:
    found = made(request.param, request, tmp_path)
    assert not isinstance(found, MemoryHarness)
    found.query("CREATE TABLE orders (feed VARCHAR(200), seq BIGINT)")
    yield found
    found.close()


class Running:
    """A feed with its owner, and a person beside it."""

    def __init__(self, harness: Harness, *, target: Target | None = None, feed_id: int = ID) -> None:
        self.feed_id, self.identity = feed_id, Identity(uuid4(), uuid4())
        self.feed = f"feed/{feed_id}"
        self.owner: Sink = harness.sink(worker_id=uuid4())
        self.person: Sink = harness.sink(role="cli")
        self.target = target or Target("raw", "json")
        self.left: UUID | None = None
        self.fence()

    def fence(self) -> Fenced:
        asked = FenceRequest(self.feed_id, self.feed, 1, self.target, self.identity)
        (outcome,) = self.owner.fence([asked], lock_timeout_s=PATIENCE_S)
        assert isinstance(outcome, Fenced), outcome
        self.left = outcome.commit_id
        return outcome

    def land(self, *numbers: int) -> str:
        records = [b'{"seq":%d}' % number for number in numbers]
        one = write(
            self.feed_id,
            1,
            batch(*records, cursor=numbers[-1]),
            target=self.target,
            continues=self.left,
        )
        written = self.owner.write([one])
        if written.landed:
            self.left = written.commit_id
        return "landed" if written.landed else "rewound" if written.rewound else "fenced"

    def change(
        self,
        choose: Callable[[JSON, ChangedCursor | None], JSON] | int | None,
        *,
        rows: LandedRows | None = None,
        dry_run: bool = False,
    ) -> ChangedCursor:
        decide = choose if callable(choose) else lambda before, last: choose
        asked = CursorChange(self.feed_id, self.feed, self.identity, "set", decide, rows, dry_run)
        return self.person.change_cursor(asked)

    def rows(self, target: Target | None = None, **neighbours: Target) -> LandedRows:
        return LandedRows(target or self.target, "/seq", lambda cursor: cursor, neighbours)


def numbers_of(harness: RealHarness, feed: str = FEED) -> list[int]:
    return [seq for name, seq in harness.query("SELECT feed, seq FROM orders ORDER BY seq") if name == feed]


def test_an_owner_that_runs_writes_nothing_more_until_it_goes_on_from_the_new_cursor(
    harness: Harness,
) -> None:
    feed = Running(harness)
    assert feed.land(1, 2, 3) == "landed"
    done = feed.change(1)
    assert (done.before, done.after, done.records) == (3, 1, 3)
    assert feed.land(4) == "rewound"
    assert feed.fence().cursor == 1
    assert feed.land(2, 3, 4) == "landed"


def test_a_change_that_is_only_tried_changes_nothing(harness: Harness) -> None:
    feed = Running(harness)
    feed.land(1)
    assert feed.change(0, dry_run=True).after == 0
    assert feed.land(2) == "landed"
    assert feed.person.cursor_changes(ID) == []


def test_the_cursor_is_chosen_from_the_one_that_is_there(harness: Harness) -> None:
    feed = Running(harness)
    feed.land(10)
    seen: list[tuple[JSON, JSON]] = []

    def back(before: JSON, last: ChangedCursor | None) -> JSON:
        seen.append((before, None if last is None else last.after))
        assert isinstance(before, int)
        return before - 3

    assert [feed.change(back).after for _ in range(2)] == [7, 4]
    assert seen == [(10, None), (7, 7)]


def test_a_choice_that_is_refused_changes_nothing(harness: Harness) -> None:
    feed = Running(harness)
    feed.land(1)

    def refuse(before: JSON, last: ChangedCursor | None) -> JSON:
        raise InvalidInput("no such cursor")

    with pytest.raises(InvalidInput, match="no such cursor"):
        feed.change(refuse)
    assert feed.land(2) == "landed"


def test_a_feed_that_has_not_begun_begins_at_the_cursor_that_it_was_given(harness: Harness) -> None:
    person = harness.sink(role="cli")
    identity = Identity(uuid4(), uuid4())
    person.change_cursor(CursorChange(7, "feed/7", identity, "set", lambda before, last: {"at": 2**70}))
    asked = FenceRequest(7, "feed/7", 1, Target("raw", "json"), identity)
    (fenced,) = harness.sink().fence([asked], lock_timeout_s=PATIENCE_S)
    assert isinstance(fenced, Fenced)
    assert fenced.cursor == {"at": 2**70}


def test_the_checkpoint_of_another_feed_is_left_alone(harness: Harness) -> None:
    feed = Running(harness)
    feed.land(1)
    stranger = replace(feed.identity, feed=uuid4())
    with pytest.raises(Conflict, match="checkpoint of another feed under its number"):
        feed.person.change_cursor(CursorChange(ID, FEED, stranger, "set", lambda before, last: 0))
    assert feed.land(2) == "landed"


def test_changes_are_remembered_newest_first_and_not_for_ever(real: RealHarness) -> None:
    feed = Running(real)
    assert feed.person.cursor_changes(ID) == []
    done = [feed.change(number) for number in range(KEPT + 2)]
    kept = feed.person.cursor_changes(ID, limit=1_000)
    assert [one.after for one in kept] == list(range(KEPT + 1, 1, -1))
    assert (kept[0].before, kept[0].commit_id) == (KEPT, done[-1].commit_id)
    assert real.query("SELECT count(*) FROM feedq_cursor_change") == [(KEPT,)]


# -- what landed after it ------------------------------------------------------------------------------


def test_rows_after_the_new_cursor_go_in_the_same_commit_and_those_of_others_stay(real: RealHarness) -> None:
    feed, other = Running(real, target=SEQ), Running(real, target=SEQ, feed_id=2)
    feed.land(*range(1, 11))
    other.land(*range(1, 11))
    done = feed.change(4, rows=feed.rows())
    assert (done.deleted, done.records) == (6, 10)
    assert numbers_of(real) == [1, 2, 3, 4]
    assert numbers_of(real, "feed/2") == list(range(1, 11))
    assert [one.records for one in feed.person.checkpoints([FEED])] == [4]
    feed.fence()
    assert feed.land(5, 6) == "landed"
    assert numbers_of(real) == [1, 2, 3, 4, 5, 6]


def test_to_begin_anew_takes_all_rows_of_the_feed(real: RealHarness) -> None:
    feed, other = Running(real, target=SEQ), Running(real, target=SEQ, feed_id=2)
    feed.land(1, 2)
    other.land(1, 2)
    assert feed.change(None, rows=replace(feed.rows(), pointer=None)).deleted == 2
    assert feed.fence().cursor is None
    assert (numbers_of(real), numbers_of(real, "feed/2")) == ([], [1, 2])


def test_too_many_rows_are_counted_and_not_deleted(
    real: RealHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedq.sinks.cursor_change.DELETED_MAX", 3)
    feed = Running(real, target=SEQ)
    feed.land(*range(1, 11))
    deleted: list[str] = []
    monkeypatch.setattr("feedq.sinks.cursor_change.delete", lambda table: deleted.append(str(table)))
    with pytest.raises(InvalidInput, match=r"more than 3 rows .*; go back in smaller steps"):
        feed.change(4, rows=feed.rows())
    assert (numbers_of(real), deleted) == (list(range(1, 11)), [])
    monkeypatch.undo()
    assert feed.change(7, rows=feed.rows()).deleted == 3


def test_what_is_only_tried_deletes_nothing_and_says_how_much(real: RealHarness) -> None:
    feed = Running(real, target=SEQ)
    feed.land(1, 2, 3)
    assert feed.change(1, rows=feed.rows(), dry_run=True).deleted == 2
    assert numbers_of(real) == [1, 2, 3]
    assert feed.land(4) == "landed"


def test_forwards_nothing_is_deleted(real: RealHarness) -> None:
    feed = Running(real, target=SEQ)
    feed.land(1, 2, 3)
    real.query(f"INSERT INTO orders VALUES ('{FEED}', 9)")
    assert feed.change(2, rows=feed.rows()).deleted == 1
    assert feed.change(8, rows=feed.rows()).deleted == 0
    assert numbers_of(real) == [1, 2, 9]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"seq": "/seq"}, "feed 'b' lands there too, and no column says whose a row is"),
        ({"feed": "$feed", "seq": "$cursor"}, "no column of whole numbers is filled from /seq"),
        ({"feed": "/seq", "seq": ColumnRule(value=1)}, "feed 'b' lands there too"),
    ],
)
def test_rows_that_nobody_can_tell_are_not_deleted(
    real: RealHarness, columns: dict[str, str | ColumnRule], why: str
) -> None:
    target = Target("orders", "json", sources_of(columns))
    feed = Running(real)
    feed.land(1, 2)
    with pytest.raises(InvalidInput, match=why):
        feed.change(1, rows=feed.rows(target, b=target))
    assert feed.land(3) == "landed"


def test_a_cursor_that_is_no_number_compares_with_no_row(real: RealHarness) -> None:
    feed = Running(real, target=SEQ)
    feed.land(1, 2)
    with pytest.raises(InvalidInput, match="no whole number"):
        feed.change(lambda before, last: "1", rows=feed.rows())
    assert numbers_of(real) == [1, 2]


def test_a_row_without_its_number_keeps_all_from_being_deleted(real: RealHarness) -> None:
    feed = Running(real, target=SEQ)
    feed.land(1, 2)
    real.query(f"INSERT INTO orders VALUES ('{FEED}', NULL)")
    with pytest.raises(InvalidInput, match="1 rows of feed 'feed/1' have no number at /seq"):
        feed.change(1, rows=feed.rows())
    assert feed.land(3) == "landed"


def test_constants_that_no_neighbour_has_tell_whose_a_row_is(real: RealHarness) -> None:
    mine, theirs = (
        Target("orders", "json", sources_of({"feed": ColumnRule(value=name), "seq": "/seq"}))
        for name in ("a", "b")
    )
    feed, other = Running(real, target=mine), Running(real, target=theirs, feed_id=2)
    feed.land(1, 2, 3)
    other.land(1, 2, 3)
    assert feed.change(1, rows=feed.rows(b=theirs)).deleted == 2
    assert (numbers_of(real, "a"), numbers_of(real, "b")) == ([1], [1, 2, 3])


def test_the_record_of_a_default_table_tells_where_the_database_reads_it(real: RealHarness) -> None:
    feed, other = Running(real), Running(real, feed_id=2)
    feed.land(1, 2, 3)
    other.land(1, 2, 3)
    if isinstance(real, SqliteHarness):
        with pytest.raises(InvalidInput, match="no column of whole numbers"):
            feed.change(1, rows=feed.rows())
        return
    assert feed.change(1, rows=feed.rows()).deleted == 2
    assert real.query("SELECT feed, count(*) FROM raw GROUP BY feed ORDER BY feed") == [
        ("feed/1", 1),
        ("feed/2", 3),
    ]


# -- at once, and cut off ------------------------------------------------------------------------------


def test_changes_beside_a_busy_writer_leave_no_mix(real: RealHarness) -> None:
    """Each number is there once, whatever the order in which commits and changes took the checkpoint."""
    feed = Running(real, target=SEQ)
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
                        cursor = feed.fence().cursor
                        assert isinstance(cursor, int)
                        at = cursor
        except BaseException as error:
            failed.append(error)

    def back(before: JSON, last: ChangedCursor | None) -> JSON:
        return max(0, before - 5) if isinstance(before, int) else 0

    feed.land(1, 2)
    thread = threading.Thread(target=stream, daemon=True)
    thread.start()
    for _ in range(8):
        feed.change(back, rows=feed.rows())
    stop.set()
    thread.join(PATIENCE_S)
    assert (thread.is_alive(), failed) == (False, [])
    landed = numbers_of(real)
    assert landed == list(range(1, landed[-1] + 1))


@pytest.mark.parametrize(
    ("fault", "happened"), [(Fault.CUT_BEFORE, False), (Fault.CUT_AFTER, True), (Fault.STRAND, None)]
)
def test_a_change_whose_answer_is_lost_is_asked_for(
    postgres: Postgres, fault: Fault, happened: bool | None
) -> None:
    harness = PostgresSinkHarness(empty_database(postgres))
    harness.query("CREATE TABLE orders (feed text NOT NULL, seq bigint)")
    feed = Running(harness, target=SEQ)
    feed.land(*range(1, 6))
    feed.change(5)  # makes the table of changes
    feed.person = harness.sink(role="cli", url=harness.proxy.url)
    feed.person.checkpoints([])
    trap = harness.proxy.arm(fault, "COMMIT")
    done, said = False, ""
    try:
        done = feed.change(2, rows=feed.rows()).after == 2
    except SinkUnavailable as error:
        said = str(error)
    assert done or "has the cursor that it had" in said
    trap.release()
    assert happened in (done, None)
    cursor = feed.fence().cursor
    assert (cursor, numbers_of(harness)) == ((2, [1, 2]) if done else (5, [1, 2, 3, 4, 5]))
    harness.close()
