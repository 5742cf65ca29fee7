"""PostgreSQL breaking off at every statement, and many sessions at once: exactly once all the same."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from feedq.errors import SinkUnavailable
from feedq.sinks import refusals
from feedq.sinks.base import Blocked, Fenced, FenceRequest, Target, Written
from feedq.worker.batch_queue import BatchQueue
from tests.contract.sink_harness import PostgresSinkHarness
from tests.contract.sink_stage import (
    LOCK_TIMEOUT_S,
    PATIENCE_S,
    RAW,
    batch,
    fence,
    fenced,
    lines,
    request,
    write,
)
from tests.proxy import Fault
from tests.unit.data_path import DataPath

ROUNDS = 100
KEYED = Target("keyed", "json", (), ("payload",))


@pytest.fixture
def harness(postgresql_sink: PostgresSinkHarness) -> PostgresSinkHarness:
    return postgresql_sink


# -- broken off at every statement -------------------------------------------------------------------

STATEMENTS = ["COPY", "INSERT INTO", "UPDATE feedq_checkpoint"]
OCCUPIED = Counter({("somebody", 0, "0"): 1})
"""A key that is there already: what has it goes by way of the staging table, hence of all the statements."""


def occupy(harness: PostgresSinkHarness) -> None:
    harness.query(f"INSERT INTO {KEYED.table} VALUES ('somebody', 0, now(), '0')")


WITH_CARE = ["SAVEPOINT", "ROLLBACK TO", "RELEASE", "COPY feedq_dead_letter"]


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
@pytest.mark.parametrize("statement", STATEMENTS + WITH_CARE)
def test_broken_off_before_the_commit_nothing_was_written(
    harness: PostgresSinkHarness, statement: str, fault: Fault
) -> None:
    sink = fenced(harness, KEYED, url=harness.proxy.url)
    checkpoint = "SELECT cursor, records, commit_id FROM feedq_checkpoint"
    before = harness.query(checkpoint)
    occupy(harness)
    records = [b"0", b"1", b'"\\u0000"'] if statement in WITH_CARE else [b"0", b"1"]
    writes = [write(1, 1, lines(*records, cursor="after"), target=KEYED)]
    trap = harness.proxy.arm(fault, statement, application="feedq-writer/")
    with pytest.raises(SinkUnavailable, match="nothing was written"):
        sink.write(writes)
    assert trap.tripped.wait(PATIENCE_S)
    assert harness.landed(KEYED) == OCCUPIED
    assert harness.query(checkpoint) == before

    # The same sink goes on with the same batches, and they land once.
    assert sink.write(writes).landed == {(1, 1): 2}
    assert harness.landed(KEYED) == OCCUPIED + Counter({("feed/1", 1, "1"): 1})
    assert len(harness.dead()) == len(records) - 2
    assert harness.query("SELECT cursor, records FROM feedq_checkpoint") == [("after", 2)]


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
def test_a_session_that_dies_at_the_first_statement_is_replaced_without_a_word(
    harness: PostgresSinkHarness, fault: Fault
) -> None:
    sink = fenced(harness, url=harness.proxy.url)
    trap = harness.proxy.arm(fault, "BEGIN", application="feedq-writer/")
    assert sink.write([write(1, 1, batch(b"1", cursor=1))]).landed == {(1, 1): 1}
    assert trap.tripped.wait(PATIENCE_S)
    assert harness.landed() == Counter({("feed/1", 1, "1"): 1})


def test_settling_does_not_guess_while_the_rows_are_locked(
    harness: PostgresSinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedq.sinks.transactional.PATIENT_LOCK_TIMEOUT_S", 0.05)
    monkeypatch.setattr("feedq.sinks.postgresql.PostgresSession.end_session", lambda *_: None)
    fence(harness.sink(), 1, 1)
    writes = [write(1, 1, batch(b"1", cursor=1))]
    sink, let_the_commit_arrive = harness.stranded(writes)
    with pytest.raises(SinkUnavailable, match="holds the lock"):
        sink.write(writes)
    let_the_commit_arrive()
    monkeypatch.undo()
    assert sink.write(writes) == Written({(1, 1): 1}, {}, (), {})
    assert harness.landed() == Counter({("feed/1", 1, "1"): 1})


# -- refused by the server at the commit -------------------------------------------------------------

TROUBLED = """
CREATE TABLE raw (feed text, epoch bigint, received_at timestamptz, payload jsonb);
CREATE SEQUENCE tries;
CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('tries') <= {failures} THEN RAISE 'trouble' USING ERRCODE = '{code}'; END IF;
    RETURN NEW;
END $$;
CREATE CONSTRAINT TRIGGER trouble AFTER INSERT ON raw {when} FOR EACH ROW EXECUTE FUNCTION trouble();
"""


@pytest.mark.parametrize("when", ["", "DEFERRABLE INITIALLY DEFERRED"], ids=["in the copy", "at the commit"])
@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_a_conflict_is_tried_again_a_few_times(harness: PostgresSinkHarness, code: str, when: str) -> None:
    harness.query(TROUBLED.format(failures=3, code=code, when=when))
    sink = fenced(harness)
    writes = [write(1, 1, batch(b"1", cursor=1))]
    assert sink.write(writes) == Written({(1, 1): 1}, {}, (), {})
    assert harness.landed() == Counter({("feed/1", 1, "1"): 1})
    harness.query(
        "ALTER SEQUENCE tries RESTART WITH 1; ALTER SEQUENCE tries MINVALUE -1000 RESTART WITH -1000"
    )
    # The sink is well, and it is this feed that cannot be written.
    (why,) = sink.write(writes).postponed.values()
    assert "trouble" in why
    assert harness.landed().total() == 1


# -- feeds in trouble beside others ------------------------------------------------------------------


@pytest.mark.parametrize("code", ["45000", "XX000", "23514", "42501", "53100", "40001"])
@pytest.mark.parametrize("when", ["", "DEFERRABLE INITIALLY DEFERRED"], ids=["in the copy", "at the commit"])
def test_whatever_one_feed_raises_the_others_land_in_few_attempts(
    harness: PostgresSinkHarness, code: str, when: str
) -> None:
    harness.query(
        f"""
        CREATE TABLE raw (feed text, epoch bigint, received_at timestamptz, payload jsonb);
        CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.payload = '"odd"' THEN RAISE 'how odd' USING ERRCODE = '{code}'; END IF; RETURN NEW;
        END $$;
        CREATE CONSTRAINT TRIGGER trouble AFTER INSERT ON raw {when} FOR EACH ROW EXECUTE FUNCTION trouble();
        """
    )
    sink, feeds = harness.sink(url=harness.proxy.url), range(1, 301)
    sink.fence([request(n, 1) for n in (*feeds, 1_000)], lock_timeout_s=PATIENCE_S)
    others = [write(n, 1, lines(b"1", b"2", cursor=n)) for n in feeds]
    odd = write(1_000, 1, lines(b"1", b'"odd"', b"2", cursor="end"))
    harness.proxy.seen.clear()
    written = sink.write([*others[:150], odd, *others[150:]], briefly=True)
    assert harness.proxy.seen["COPY"] < 60
    if written.dead:
        assert written == Written({w.key: 2 for w in [*others, odd]}, {odd.key: 1}, (), {})
        assert harness.proxy.seen["BEGIN"] == 1
        return
    # Who is not to blame, and was not found out so in time, comes again by itself.
    assert odd.key in written.postponed
    left = [one for one in others if one.key in written.postponed]
    assert all(sink.write([one]).landed for one in left)
    alone = sink.write([odd])
    if code in ("53100", "40001"):
        assert "how odd" in alone.postponed[odd.key], "not the record's fault"
    else:
        assert (alone.landed, alone.dead) == ({odd.key: 2}, {odd.key: 1})
        assert code in alone.errors[odd.key]
    assert sum(harness.landed().values()) == 600 + alone.landed.get(odd.key, 0)


@pytest.mark.parametrize("code", ["42501", "42P01", "0A000", "28000", "3F000", "55000", "57P01", "57P03"])
@pytest.mark.parametrize("briefly", [True, False], ids=["with others", "apart"])
def test_a_record_about_which_a_trigger_raises_what_tables_and_servers_raise_is_a_dead_letter(
    harness: PostgresSinkHarness, code: str, briefly: bool
) -> None:
    sink = harness.sink(url=harness.proxy.url)
    sink.fence([request(n, 1) for n in (1, 2)], lock_timeout_s=PATIENCE_S)
    odd = harness.spoil(RAW, code)
    harness.proxy.seen.clear()
    written = sink.write(
        [write(1, 1, lines(b"1", odd, b"2", cursor="end")), write(2, 1, lines(b"1", cursor=1))],
        briefly=briefly,
    )
    assert written == Written({(1, 1): 2, (2, 1): 1}, {(1, 1): 1}, (), {})
    assert code in written.errors[1, 1]
    assert (harness.proxy.seen["BEGIN"], harness.proxy.seen["COMMIT"]) == (1, 1)


class RealPath(DataPath):
    """A writer and a fencer over the database of a harness, where the tests fence their feeds themselves."""

    set_aside_max = refusals.SET_ASIDE_MAX

    def __init__(self, harness: PostgresSinkHarness) -> None:
        super().__init__()
        self._harness = harness

    def make_sink(self) -> Any:
        return self._harness.sink(worker_id=self.worker_id)

    def fence(self, request: FenceRequest) -> None:
        pass


async def test_two_feeds_whose_tables_raise_what_servers_in_trouble_raise_hold_up_no_third(
    harness: PostgresSinkHarness,
) -> None:
    """Each alone was harmless; two were taken for a sink that is away, and nothing of it landed any more."""
    targets = {1: Target("conflicting", "json"), 2: Target("closing", "json"), 3: RAW}
    for table, code in (("conflicting", "40001"), ("closing", "57P01")):
        harness.query(
            f"""
            CREATE TABLE {table} (feed text, epoch bigint, received_at timestamptz, payload jsonb);
            CREATE FUNCTION {table}() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE 'trouble' USING ERRCODE = '{code}'; END $$;
            CREATE TRIGGER trouble BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {table}();
            """
        )
    with RealPath(harness) as path:
        asked = [request(n, 1, target) for n, target in targets.items()]
        with closing(path.make_sink()) as sink:
            fenced = sink.fence(asked, lock_timeout_s=PATIENCE_S)
        left = {one.feed_id: one.commit_id for one in fenced if isinstance(one, Fenced)}
        bad, worse, well = (
            path.open_batch_queue((n, 1), f"feed/{n}", target=target, continues=left[n])
            for n, target in targets.items()
        )

        async def send_on(queue: BatchQueue) -> None:
            for n in itertools.count():
                await queue.put(batch(b"1", b"2", cursor=n))
                await asyncio.sleep(0.01)

        troubles = [asyncio.create_task(send_on(queue)) for queue in (bad, worse)]
        rounds = 0
        # Far fewer would fit into it if each waited for a try of the others.
        async with asyncio.timeout(PATIENCE_S):
            while rounds < ROUNDS or bad.trouble is None:
                await well.put(batch(b"1", cursor=1))
                await well.join()
                rounds += 1
                assert path.outage.down is None
        for task in troubles:
            task.cancel()
        await asyncio.gather(*troubles, return_exceptions=True)
        for queue in (bad, worse, well):
            queue.abandon()


def test_a_trigger_that_refuses_every_record_as_a_table_does_stops_its_feed_and_makes_no_dead_letters(
    harness: PostgresSinkHarness,
) -> None:
    harness.query(TROUBLED.format(failures=10**6, code="42501", when=""))
    sink = fenced(harness)
    written = sink.write([write(1, 1, batch(*[b"1"] * 300, cursor=1))])
    assert "trouble" in written.unusable[1, 1]
    assert written.dead == {}


@pytest.mark.parametrize("refused_by", ["encoder", "database"])
def test_dead_letters_that_cannot_be_kept_are_their_feeds_trouble_alone(
    harness: PostgresSinkHarness, refused_by: str
) -> None:
    bad = {"encoder": b"bad", "database": b"2"}[refused_by]
    sink = harness.sink()
    sink.fence([request(n, 1) for n in (1, 2)], lock_timeout_s=PATIENCE_S)
    harness.query("ALTER TABLE raw ADD CHECK (payload <> '2')")
    harness.query("ALTER TABLE feedq_dead_letter ADD CHECK (error IS NULL)")
    group = [write(1, 1, lines(b"1", bad, cursor=1)), write(2, 1, lines(b"1", cursor=1))]
    written = sink.write(group, briefly=True)
    assert (written.landed, set(written.postponed)) == ({(2, 1): 1}, {(1, 1)})
    assert "feedq_dead_letter" in sink.write(group[:1]).postponed[1, 1]
    assert harness.landed() == Counter({("feed/2", 1, "1"): 1})


def test_a_landing_that_is_too_slow_for_a_group_is_written_apart(
    harness: PostgresSinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.query(
        """
        CREATE TABLE raw (feed text, epoch bigint, received_at timestamptz, payload jsonb);
        CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_sleep(1.5); RETURN NEW; END $$;
        CREATE TRIGGER slowly BEFORE INSERT ON raw FOR EACH ROW EXECUTE FUNCTION slowly();
        """
    )
    monkeypatch.setattr("feedq.sinks.transactional.BRIEF_STATEMENT_TIMEOUT_S", 1.0)
    sink = harness.sink()
    sink.fence([request(1, 1), request(2, 1, OTHER)], lock_timeout_s=PATIENCE_S)
    group = [write(1, 1, batch(b"1")), write(2, 1, batch(b"2"), target=OTHER)]
    written = sink.write(group, briefly=True)
    assert (written.landed, set(written.postponed)) == ({(2, 1): 1}, {(1, 1)})
    assert sink.write(group[:1]).landed == {(1, 1): 1}


# -- locks -------------------------------------------------------------------------------------------


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how long a group commit waits for a lock."""

    def wait_at_most(seconds: float) -> None:
        monkeypatch.setattr("feedq.sinks.postgresql.PostgresSession.lock_timeout_s", seconds)

    wait_at_most(0.05)
    return wait_at_most


OTHER = Target("other", "json")


def test_a_table_that_was_found_locked_is_not_waited_for_again(
    harness: PostgresSinkHarness, impatience: Callable[[float], None]
) -> None:
    sink = fenced(harness)
    with harness.session() as operator:
        operator.execute("BEGIN; LOCK TABLE raw")
        assert sink.write([write(1, 1, batch(b"1"))]).postponed
        impatience(10 * PATIENCE_S)
        began = time.monotonic()
        assert sink.write([write(1, 1, batch(b"1"))]).postponed
        assert time.monotonic() - began < PATIENCE_S
        operator.execute("ROLLBACK")
    assert sink.write([write(1, 1, batch(b"1"))]).landed == {(1, 1): 1}
    assert harness.query("SELECT records FROM feedq_checkpoint") == [(1,)]


def test_a_key_that_somebody_is_about_to_insert_postpones_its_feeds_only(
    harness: PostgresSinkHarness, impatience: Callable[[float], None]
) -> None:
    sink = harness.sink()
    sink.fence([request(1, 1, KEYED), request(2, 1, OTHER)], lock_timeout_s=PATIENCE_S)
    group = [write(1, 1, batch(b"1"), target=KEYED), write(2, 1, batch(b"2"), target=OTHER)]
    with harness.session() as operator:
        operator.execute(f"BEGIN; INSERT INTO {KEYED.table} VALUES ('feed/1', 1, now(), '1')")
        for landed in (1, 1):
            written = sink.write(group)
            assert (written.landed, set(written.postponed)) == ({(2, 1): landed}, {(1, 1)})
        operator.execute("ROLLBACK")
    assert sink.write(group[:1]).landed == {(1, 1): 1}


@pytest.mark.parametrize("briefly", [True, False])
def test_a_checkpoint_locked_by_an_operator_postpones_its_feed_only(
    harness: PostgresSinkHarness, impatience: Callable[[float], None], briefly: bool
) -> None:
    sink = harness.sink()
    sink.fence([request(n, 1) for n in (1, 2)], lock_timeout_s=PATIENCE_S)
    group = [write(n, 1, batch(b"1")) for n in (1, 2, 3)]
    with harness.session() as operator:
        operator.execute("BEGIN; SELECT FROM feedq_checkpoint WHERE feed_id = 1 FOR UPDATE")
        written = sink.write(group, briefly=briefly)
        # The third has no checkpoint: as in a sink that was restored from before it was first fenced.
        assert (written.landed, written.lost) == ({(2, 1): 1}, ((3, 1),))
        assert written.postponed == {(1, 1): "its checkpoint is locked"}
        operator.execute("ROLLBACK")
    assert sink.write(group[:1]).landed == {(1, 1): 1}


def test_a_fence_is_tried_again_until_its_predecessor_has_committed(
    harness: PostgresSinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = uuid4()
    fence(harness.sink(worker_id=worker), 1, 1)
    frozen = harness.frozen([write(1, 1, batch(b"1", cursor="left"))], worker_id=worker)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: frozen.thaw())
    monkeypatch.setattr("feedq.sinks.fencing.time", clock)
    assert fence(harness.sink(), 1, 2) == Fenced(1, 2, "left", 1)


def test_a_fence_under_way_elsewhere_blocks_its_feed_only(harness: PostgresSinkHarness) -> None:
    sink = fenced(harness)
    with harness.session() as other:
        # Rows that are not there yet, as far as anybody else can see.
        other.execute(
            "BEGIN; INSERT INTO feedq_checkpoint "
            "(environment, feed_id, feed, epoch, owner, feed_uuid, installation) "
            "SELECT 'test', n, 'x', 5, u, u, u FROM generate_series(100, 150) AS n, gen_random_uuid() AS u",
        )
        requests = [request(n, 2) for n in (1, 99, *range(100, 151), 151)]
        outcomes = {o.feed_id: o for o in sink.fence(requests, lock_timeout_s=LOCK_TIMEOUT_S)}
        assert {n for n, o in outcomes.items() if isinstance(o, Fenced)} == {1, 99}
        assert [outcomes[n] for n in range(100, 152)] == [Blocked(n, 2, None) for n in range(100, 152)]
        other.execute("ROLLBACK")
    assert all(isinstance(o, Fenced) for o in sink.fence(requests, lock_timeout_s=LOCK_TIMEOUT_S))


def test_own_tables_that_are_dropped_come_back(harness: PostgresSinkHarness) -> None:
    sink = fenced(harness)
    harness.query("DROP TABLE feedq_dead_letter")
    (why,) = sink.write([write(1, 1, batch(b"bad", cursor=1))]).postponed.values()
    assert "feedq_dead_letter" in why
    assert sink.write([write(1, 1, batch(b"bad", cursor=1))]).dead == {(1, 1): 1}
