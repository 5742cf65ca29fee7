"""The feeds of ``examples/`` are valid, say where they come from, and land what their sources send."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import psycopg2
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from feedq.connectors.base import parse_options
from feedq.core.model import FeedSpec
from feedq.core.schedule.model import ClaimedRun, RunKind
from feedq.core.schedule.spec import ScheduleSpec, Semantics
from feedq.local.demo import _CREATE, TABLE, LandedCheck, Tally, total
from feedq.records.batch import Records
from feedq.sinks.base import FeedWrite, Preview, parse_sink, target_of
from feedq.sinks.postgresql import PostgresSink
from feedq.verbs import manifests
from feedq.verbs.manifests import Declaration, option_problems
from feedq.worker.jobs.calling import import_jobs
from feedq.worker.jobs.context import RunContext

FEEDS = Path(__file__).parents[2] / "examples" / "feeds"

FILES = sorted(FEEDS.glob("*.yaml"))

# One record of each source, as its documentation shows them.
SAMPLES = {
    "wikimedia/recentchange": b"""{"$schema": "/mediawiki/recentchange/1.0.0", "meta": {"uri": "https://de.wikipedia.org/wiki/Wal",
        "id": "b9d9fc1b-8c5f-4f06-8d3b-4f1c7c8a1a11", "dt": "2026-11-20T06:30:00Z", "domain": "de.wikipedia.org",
        "stream": "mediawiki.recentchange"}, "id": 1, "type": "edit", "namespace": 0, "title": "Wal",
        "comment": "/* Arten */", "timestamp": 1795156200, "user": "Ahab", "bot": false, "wiki": "dewiki"}""",
    "bluesky/posts": b"""{"did": "did:plc:eygmaihciaxprqvxpfvl6flk", "time_us": 1725911162329308, "kind": "commit",
        "commit": {"rev": "3l3qo2vutsw2b", "operation": "create", "collection": "app.bsky.feed.post",
        "rkey": "3l3qo2vuowo2b", "record": {"$type": "app.bsky.feed.post", "createdAt": "2024-09-09T19:46:02.102Z",
        "langs": ["en"], "text": "Hello"},
        "cid": "bafyreidwaivazkwu67xztlmuobx35hs2lnfh3kolmgfmucldvhd3sgzcqi"}}""",
    "ripe/rrc21": b"""{"type": "ris_message", "data": {"timestamp": 1640995200.12, "peer": "37.49.237.228",
        "peer_asn": "199524", "id": "37.49.237.228-017e1", "host": "rrc21.ripe.net", "type": "UPDATE",
        "path": [199524, 1299, [3356, 174]], "origin": "IGP", "announcements": [{"next_hop": "37.49.237.228",
        "prefixes": ["192.0.2.0/24"]}], "withdrawals": []}}""",
    "coinbase/trades": b"""{"type": "match", "trade_id": 10, "sequence": 50, "time": "2014-11-07T08:19:27.028459Z",
        "maker_order_id": "ac928c66-ca53-498f-9c13-a110027a60e8", "product_id": "BTC-USD", "size": "5.23512",
        "taker_order_id": "132fb6ae-456b-4654-b4e0-d681ac05cea1", "price": "400.23", "side": "sell"}""",
    "kystverket/ais": rb"\s:2573555,c:1707873398*05\!BSVDM,1,1,,A,13mB7d001E1dDH0`KlKBjB?<0490,0*34",
    "home/ais": b"!AIVDM,1,1,,B,13m9ERPP00Pp5opUivG8P?w:0<12,0*6F",
    "home/adsb": b"MSG,3,5,211,4CA2D6,10057,2008/11/28,14:53:50.594,2008/11/28,14:58:51.153,"
    b",37000,,,51.45735,-1.02826,,,0,0,0,0",
    "mbta/vehicle-positions": b"\n\r\n\x032.0\x10\x00\x18\xa8\xd2\xb8\xa1\x06",
    "usgs/earthquakes": b"""{"type": "Feature", "properties": {"mag": 1.2, "place": "4 km NW of The Geysers, CA",
        "time": 1795156200000, "updated": 1795156300000, "tz": null, "status": "automatic", "tsunami": 0,
        "type": "earthquake"}, "geometry": {"type": "Point", "coordinates": [-122.8, 38.8, 2.1]},
        "id": "nc75272222"}""",
}

SAMPLES = {
    name: b" ".join(sample.split()) if sample[:1] == b"{" else sample for name, sample in SAMPLES.items()
}


def declarations() -> list[tuple[Path, Declaration[FeedSpec]]]:
    return [
        (path, declaration)
        for path in FILES
        for declaration in manifests.parse(path.read_text(), origin=path.name).feeds
    ]


def comment(path: Path) -> str:
    lines = [line for line in path.read_text().splitlines() if line.startswith("#")]
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)


def statements(path: Path) -> list[str]:
    """The SQL in the head of an example."""
    return re.findall(r"^CREATE TABLE .*?^\);$", comment(path), re.MULTILINE | re.DOTALL)


def name_of(value: object) -> str:
    return value.name if isinstance(value, Path) else ""


def preview(url: str, declaration: Declaration[FeedSpec]) -> Preview:
    """How the sample of a feed would land."""
    spec = declaration.spec
    target = target_of(parse_sink(spec.sink), parse_options(spec.connector, spec.source))
    batch = Records(records=(SAMPLES[spec.name],)).batch(cursor=None, received_at=datetime.now(UTC))
    sink = PostgresSink(url, environment="examples", worker_id=uuid4(), role="test")
    try:
        (shown,) = sink.preview(FeedWrite(1, spec.name, 1, target, (batch,)))
    finally:
        sink.close()
    return shown


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_an_example_is_valid_and_says_where_it_comes_from(path: Path) -> None:
    read = manifests.parse(path.read_text(), origin=path.name)
    assert not read.problems
    assert read.feeds
    assert [problem for d in read.feeds for problem in option_problems(d.spec)] == []
    assert re.search(r"^Source: +https?://", comment(path), re.MULTILINE)
    assert re.search(r"^Terms: +\S", comment(path), re.MULTILINE)
    assert f"({path.name})" in (FEEDS / "README.md").read_text()


@pytest.mark.parametrize(("path", "declaration"), declarations(), ids=name_of)
def test_what_the_source_sends_lands_in_the_table(
    path: Path, declaration: Declaration[FeedSpec], database_url: str
) -> None:
    created = statements(path)
    assert bool(created) == ("columns" in declaration.spec.sink)
    with psycopg2.connect(database_url) as connection, connection.cursor() as cursor:
        for statement in created:
            cursor.execute(statement)
    connection.close()
    shown = preview(database_url, declaration)
    assert shown.error is None
    columns = declaration.spec.sink.get("columns", {})
    assert set(columns) <= set(shown.columns)
    # A pointer that finds nothing in the source's own sample would be a mistake.
    optional = {"callsign", "ground_speed", "track", "vertical_rate", "squawk"}
    assert {name for name in columns if shown.columns[name] is None} <= optional


EXAMPLES = Path(__file__).parents[2] / "examples" / "schedules"

FILE = EXAMPLES / "schedules.yaml"

TICK = datetime(2026, 11, 22, 10, tzinfo=UTC)


def declared() -> dict[str, ScheduleSpec]:
    read = manifests.parse(FILE.read_text(), origin=FILE.name)
    assert not read.problems
    return {declaration.spec.name: declaration.spec for declaration in read.schedules}


@pytest.fixture(scope="module")
def harbour() -> Iterator[ModuleType]:
    """The module as a worker imports it that is started beside it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(EXAMPLES)
        # As the program celery has it: its own directory is on the path, and not the one that it is started in.
        patched.setattr(sys, "path", [path for path in sys.path if path not in ("", str(EXAMPLES))])
        import_jobs(("harbour",))
    yield sys.modules["harbour"]
    del sys.modules["harbour"]


def jobs(module: ModuleType) -> dict[str, Any]:
    return {task.name: task for task in vars(module).values() if hasattr(task, "apply_async")}


def context(name: str, *, remaining_s: float = 30) -> RunContext:
    job = declared()[name]
    key = TICK.isoformat().replace("+00:00", "Z")
    claimed = ClaimedRun(1, 9, 1, name, key, RunKind.TICK, TICK, TICK, job, remaining_s)
    return RunContext(claimed)


def call(module: ModuleType, job: ScheduleSpec) -> None:
    jobs(module)[job.task].run(*job.args, **job.kwargs)


@pytest.fixture
def tables(database_url: str) -> str:
    """A database with the tables in the head of the example, and some landed positions."""
    comment = "\n".join(line[2:] for line in FILE.read_text().splitlines() if line.startswith("# "))
    statements = re.findall(r"^CREATE TABLE .*?^\);$", comment, re.MULTILINE | re.DOTALL)
    assert len(statements) == 2
    landed = "CREATE TABLE ais_raw (feed text, epoch bigint, received_at timestamptz, payload text)"
    connection = psycopg2.connect(database_url)
    with connection, connection.cursor() as cursor:
        for statement in (*statements, landed):
            cursor.execute(statement)
        for minutes in (-61, -60, -30, -1, 0):
            at = TICK + timedelta(minutes=minutes)
            cursor.execute("INSERT INTO ais_raw VALUES ('home/ais', 1, %s, 'AIVDM')", (at,))
    connection.close()
    return database_url


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(url)
    with connection, connection.cursor() as cursor:
        cursor.execute(query)
        found = cursor.fetchall()
    connection.close()
    return found


def test_the_schedules_are_valid_and_there_is_one_for_each_semantics() -> None:
    assert {spec.semantics for spec in declared().values()} == set(Semantics)
    assert len(declared()) == 3


def test_each_schedule_names_a_task_that_takes_its_arguments(harbour: ModuleType) -> None:
    for spec in declared().values():
        task = jobs(harbour)[spec.task]
        inspect.signature(task.run).bind(*spec.args, **spec.kwargs)
    assert {spec.task for spec in declared().values()} == set(jobs(harbour))


def test_ships_are_counted_for_the_hour_before_the_tick_in_the_runs_own_transaction(
    harbour: ModuleType, tables: str
) -> None:
    engine = create_engine(tables.replace("postgresql:", "postgresql+psycopg2:", 1))
    run = context("harbour/ships")
    with Session(engine) as session, run.entered(), run.within(session):
        call(harbour, declared()["harbour/ships"])
        assert rows(tables, "SELECT * FROM ais_hourly") == [], "committed by the job itself"
        session.commit()
    engine.dispose()
    assert rows(tables, "SELECT * FROM ais_hourly") == [("home/ais", TICK - timedelta(hours=1), 3)]


def test_missing_and_doubled_records_are_counted_each_by_themselves(control_database_url: str) -> None:
    landed = {"exact": [1, 2, 3], "both": [1, 2, 2, 4]}
    with closing(psycopg2.connect(control_database_url)) as session, session.cursor() as cursor:
        cursor.execute(_CREATE)
        for feed, numbers in landed.items():
            for seq in numbers:
                cursor.execute(f"INSERT INTO {TABLE} VALUES (%s, %s, now(), '')", (feed, seq))
        session.commit()
        try:
            found = LandedCheck(control_database_url).tallies()
        finally:
            cursor.execute(f"DROP TABLE {TABLE}")
            session.commit()
    assert found == {"exact": Tally(3, 0, 0), "both": Tally(4, missing=1, doubled=1)}
    assert str(total(found)) == "7 rows, 1 missing, 1 doubled"
    assert str(total({})) == "0 rows, 0 missing, 0 doubled"
