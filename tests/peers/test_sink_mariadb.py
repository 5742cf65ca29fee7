"""The sink for MariaDB: the suite of every sink, and what it does when something happens to the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from uuid import uuid4

import pymysql
import pytest

from feedq.errors import SinkUnavailable
from feedq.sinks.base import Blocked, Fenced, Target
from feedq.sinks.session import CONFLICT_PAUSE_S
from tests.cluster import wait_until
from tests.contract.sink_conformance import SinkConformance
from tests.contract.sink_stage import (
    LOCK_TIMEOUT_S,
    PATIENCE_S,
    batch,
    fence,
    fenced,
    lines,
    request,
    write,
)
from tests.peers.mariadb import DATABASE, MariaDb, MariaDbHarness
from tests.proxy import Fault

OTHER = Target("other", "json")


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    with MariaDb() as server:
        yield server


@pytest.fixture
def harness(mariadb: MariaDb) -> Iterator[MariaDbHarness]:
    made = MariaDbHarness(mariadb)
    yield made
    made.close()


class TestSqlSinkOnMariaDb(SinkConformance):
    """All that a sink must do, InnoDB does."""

    password = "s3cret"


# -- connecting --------------------------------------------------------------------------------------


def test_an_ordinary_user_is_enough(harness: MariaDbHarness) -> None:
    harness.query("CREATE OR REPLACE USER 'feeds'@'%' IDENTIFIED BY 's3cret'")
    harness.query(f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, INDEX ON {DATABASE}.* TO 'feeds'@'%'")
    url = harness.server.url(DATABASE, user="feeds:s3cret")
    zombie = uuid4()
    fence(harness.sink(worker_id=zombie, url=url), 1, 1, OTHER)
    successor = harness.sink(url=url)
    assert successor.unblock([zombie]) == 1
    fence(successor, 1, 2, OTHER)
    assert successor.write([write(1, 2, batch(b"1", b"bad"), target=OTHER)]).dead == {(1, 2): 1}


# -- own tables --------------------------------------------------------------------------------------


def test_a_table_that_another_session_is_making_is_waited_for(
    harness: MariaDbHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB refuses even to describe a table while somebody makes it."""
    maker = harness.server.connect(DATABASE)
    being_made = f"SELECT state FROM information_schema.processlist WHERE id = {maker.thread_id()}"
    pauses: list[float] = []

    def wait_for_state(state: object) -> None:
        wait_until(lambda: harness.query(being_made) == state, f"{state}", limit_s=PATIENCE_S)

    with ThreadPoolExecutor(1) as threads:
        making = threads.submit(maker.cursor().execute, "CREATE TABLE feedq_checkpoint SELECT SLEEP(60)")
        wait_for_state([("User sleep",)])

        def stop_making(pause_s: float) -> None:
            if pause_s:
                harness.query(f"KILL {maker.thread_id()}")
                assert isinstance(making.exception(PATIENCE_S), pymysql.Error)
                wait_for_state([])
            pauses.append(pause_s)

        monkeypatch.setattr("feedq.sinks.session.time", SimpleNamespace(sleep=stop_making))
        fence(harness.sink(), 1, 1)
    assert harness.query("SELECT feed_id, epoch FROM feedq_checkpoint") == [(1, 1)]
    assert pauses == [0.0, CONFLICT_PAUSE_S, 0.0], "the second table is made at once"


# -- broken off --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT feedq_checkpoint.feed_id, feedq_checkpoint.epoch",
        "INSERT INTO raw",
        "INSERT INTO feedq_checkpoint",
        "INSERT INTO feedq_dead_letter",
        "SAVEPOINT feedq_attempt",
        "ROLLBACK TO SAVEPOINT feedq_attempt",
        "RELEASE SAVEPOINT feedq_target",
    ],
)
def test_broken_off_before_the_commit_nothing_was_written(
    harness: MariaDbHarness, statement: str, fault: Fault
) -> None:
    sink = fenced(harness, url=f"{harness.proxy.url}{DATABASE}")
    records = [b"1", harness.refused if "SAVEPOINT" in statement else b"bad"]
    writes = [write(1, 1, lines(*records, cursor="after"))]
    trap = harness.proxy.arm(fault, statement)
    if statement.startswith("SELECT"):
        # Nothing has been done yet: a new session is worth a try at once.
        assert sink.write(writes).landed == {(1, 1): 1}
    else:
        with pytest.raises(SinkUnavailable, match="nothing was written"):
            sink.write(writes)
        assert harness.query("SELECT * FROM raw") == harness.query("SELECT * FROM feedq_dead_letter") == []
        assert harness.query("SELECT `cursor`, records FROM feedq_checkpoint") == [(None, 0)]
        assert sink.write(writes).landed == {(1, 1): 1}
    assert trap.tripped.wait(PATIENCE_S)
    assert harness.query("SELECT count(*) FROM raw") == harness.query(
        "SELECT count(*) FROM feedq_dead_letter"
    )
    assert harness.query("SELECT `cursor`, records FROM feedq_checkpoint") == [('"after"', 1)]


# -- locks -------------------------------------------------------------------------------------------


def test_a_row_locked_by_an_operator_blocks_its_feed_only_and_in_time(harness: MariaDbHarness) -> None:
    worker = uuid4()
    fence(harness.sink(worker_id=worker), 1, 1)
    with harness.server.connect(DATABASE) as operator, operator.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM feedq_checkpoint WHERE environment = 'test' AND feed_id = 1 FOR UPDATE")
        began = time.monotonic()
        outcomes = harness.sink().fence([request(n, 2) for n in (1, 2)], lock_timeout_s=LOCK_TIMEOUT_S)
        assert set(outcomes) == {Blocked(1, 2, worker), Fenced(2, 2, None, 0)}
        # The server's own patience, of 50 seconds, plays no part; nor do its whole seconds.
        assert time.monotonic() - began < PATIENCE_S / 2
        cursor.execute("ROLLBACK")
