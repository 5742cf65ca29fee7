"""The sink for any database, on one that it knows nothing special of: PostgreSQL, asked in plain SQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from uuid import uuid4

import psycopg2
import pytest

from feedq.embedded.postgres import Postgres
from feedq.errors import SinkUnavailable
from feedq.sinks.base import Blocked, OnConflict, Target, Written
from feedq.sinks.mapping import sources_of
from tests.contract.sink_harness import GeneralSqlHarness, empty_database
from tests.contract.sink_stage import LOCK_TIMEOUT_S, PATIENCE_S, batch, fence, lines, request, write
from tests.proxy import Fault

COLUMNS = sources_of({"n": "/n", "note": "/note"})
KEYED = Target("kept", "json", COLUMNS, ("n",))
UPDATING = Target("kept", "json", COLUMNS, ("n",), on_conflict=OnConflict.UPDATE)


@pytest.fixture
def harness(postgres: Postgres) -> Iterator[GeneralSqlHarness]:
    made = GeneralSqlHarness(empty_database(postgres))
    yield made
    made.close()


def record(n: int, note: str) -> bytes:
    return b'{"n": %d, "note": "%s"}' % (n, note.encode())


@pytest.mark.parametrize(
    ("target", "rows"),
    [(KEYED, [(1, "old"), (2, "old"), (3, "new")]), (UPDATING, [(1, "old"), (2, "new"), (3, "last")])],
    ids=["ignore", "update"],
)
def test_without_an_upsert_each_row_is_looked_for(
    harness: GeneralSqlHarness, target: Target, rows: list[tuple[int, str]]
) -> None:
    harness.query("CREATE TABLE kept (n int UNIQUE, note text)")
    sink = harness.sink()
    fence(sink, 1, 1, target)
    assert sink.write([write(1, 1, lines(record(1, "old"), record(2, "old")), target=target)]).landed
    again = lines(record(2, "new"), record(3, "new"), record(3, "last"))
    assert sink.write([write(1, 1, again, target=target)]).landed == {(1, 1): 3}
    assert harness.query("SELECT n, note FROM kept ORDER BY n") == rows


@pytest.mark.parametrize("target", [KEYED, UPDATING], ids=["ignore", "update"])
def test_a_row_that_another_session_inserts_at_the_same_moment_was_there_already(
    harness: GeneralSqlHarness, target: Target
) -> None:
    harness.query("CREATE TABLE kept (n int UNIQUE, note text CHECK (note <> 'bad'))")
    sink = harness.sink(url=harness.proxy.url)
    fence(sink, 1, 1, target)
    # After the bad record, so that it is the careful attempt that is held up: the one that finds the guilty.
    writes = [write(1, 1, batch(record(0, "bad"), record(1, "ours")), target=target)]
    trap = harness.proxy.arm(Fault.HOLD, "INSERT INTO kept (n, note) VALUES (1")
    results: list[Written] = []
    writing = threading.Thread(target=lambda: results.append(sink.write(writes)))
    writing.start()
    assert trap.tripped.wait(PATIENCE_S)
    harness.query("INSERT INTO kept VALUES (1, 'theirs')")
    trap.release()
    writing.join(PATIENCE_S)
    assert results == [Written({(1, 1): 1}, {(1, 1): 1}, (), {})]
    note = "theirs" if target is KEYED else "ours"
    assert harness.query("SELECT n, note FROM kept") == [(1, note)]


@pytest.mark.parametrize("target", [KEYED, UPDATING], ids=["ignore", "update"])
def test_a_unique_index_that_is_not_the_key_refuses_its_record(
    harness: GeneralSqlHarness, target: Target
) -> None:
    harness.query("CREATE TABLE kept (n int UNIQUE, note text UNIQUE)")
    sink = harness.sink()
    fence(sink, 1, 1, target)
    records = [record(1, "a"), record(2, "b"), record(3, "a"), record(4, "c")]
    assert sink.write([write(1, 1, batch(*records), target=target)]).dead == {(1, 1): 1}
    assert harness.query("SELECT n FROM kept ORDER BY n") == [(1,), (2,), (4,)]


def test_a_record_refused_at_the_commit_is_found_and_the_rest_lands(harness: GeneralSqlHarness) -> None:
    harness.query("CREATE TABLE kept (n int UNIQUE DEFERRABLE INITIALLY DEFERRED, note text)")
    target = Target("kept", "json", COLUMNS)
    sink = harness.sink()
    fence(sink, 1, 1, target)
    records = [record(1, "a"), record(2, "b"), record(1, "c"), record(3, "d")]
    assert sink.write([write(1, 1, batch(*records), target=target)]).dead == {(1, 1): 1}
    assert harness.query("SELECT n, note FROM kept ORDER BY n") == [(1, "a"), (2, "b"), (3, "d")]


def test_a_row_locked_by_an_operator_is_not_waited_for(harness: GeneralSqlHarness) -> None:
    worker = uuid4()
    owner = harness.sink(worker_id=worker)
    fence(owner, 1, 1)
    with harness.session() as operator:
        operator.execute("BEGIN; SELECT FROM feedq_checkpoint FOR UPDATE")
        successor = harness.sink()
        outcomes = successor.fence([request(1, 2), request(2, 1)], lock_timeout_s=LOCK_TIMEOUT_S)
        assert Blocked(1, 2, worker) in outcomes
        assert owner.write([write(1, 1, batch(b"1"))]).postponed == {(1, 1): "its checkpoint is locked"}
    assert owner.write([write(1, 1, batch(b"1"))]).landed == {(1, 1): 1}


def test_feeds_of_a_locked_table_are_postponed_and_the_others_go_on(harness: GeneralSqlHarness) -> None:
    harness.query("ALTER ROLE CURRENT_USER SET lock_timeout = '50ms'")
    try:
        sink, other = harness.sink(), Target("other", "json")
        sink.fence([request(1, 1), request(2, 1, other)], lock_timeout_s=PATIENCE_S)
        both = [write(1, 1, batch(b"1", cursor=1)), write(2, 1, batch(b"2", cursor=2), target=other)]
        with harness.session() as operator:
            operator.execute("BEGIN; LOCK TABLE raw")
            written = sink.write(both)
            assert (written.landed, set(written.postponed)) == ({(2, 1): 1}, {(1, 1)})
        assert sink.write(both[:1]).landed == {(1, 1): 1}
        assert [fence(sink, n, 2, x).cursor for n, x in ((1, both[0].target), (2, other))] == [1, 2]
    finally:
        harness.query("ALTER ROLE CURRENT_USER RESET lock_timeout")


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT feedq_checkpoint.feed_id",
        "INSERT INTO raw",
        "UPDATE feedq_checkpoint",
        "INSERT INTO feedq_dead",
    ],
)
def test_broken_off_before_the_commit_nothing_was_written(
    harness: GeneralSqlHarness, statement: str, fault: Fault
) -> None:
    sink = harness.sink(url=harness.proxy.url)
    fence(sink, 1, 1)
    writes = [write(1, 1, lines(b"1", b"bad", cursor="after"))]
    trap = harness.proxy.arm(fault, statement)
    if statement.startswith("SELECT"):
        # Nothing has been done yet: a new session is worth a try at once.
        assert sink.write(writes).landed == {(1, 1): 1}
    else:
        with pytest.raises(SinkUnavailable, match="nothing was written"):
            sink.write(writes)
        assert harness.query("SELECT * FROM raw") == harness.query("SELECT * FROM feedq_dead_letter") == []
        assert harness.query("SELECT cursor, records FROM feedq_checkpoint") == [(None, 0)]
        assert sink.write(writes).landed == {(1, 1): 1}
    assert trap.tripped.wait(PATIENCE_S)
    assert harness.query("SELECT count(*) FROM raw") == harness.query(
        "SELECT count(*) FROM feedq_dead_letter"
    )
    assert harness.query("SELECT cursor, records FROM feedq_checkpoint") == [('"after"', 1)]


def test_a_session_that_died_while_idle_is_replaced_without_a_word(harness: GeneralSqlHarness) -> None:
    sink = harness.sink()
    fence(sink, 1, 1)
    for n in range(2):
        for act in (
            lambda: sink.write([write(1, 1, batch(b"1", cursor=n))]),  # noqa: B023 - called at once
            lambda: fence(sink, 1, 1),
        ):
            with psycopg2.connect(harness.url) as operator, operator.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                    "WHERE application_name ~ '^feedq'"
                )
            act()
    assert harness.query("SELECT count(*) FROM raw") == [(2,)]
