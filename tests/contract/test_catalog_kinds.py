"""What each kind of catalog gives of what it reads, and when it gives nothing."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pymongo
import pytest
from moto.server import ThreadedMotoServer
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from feedq.errors import CatalogUnavailable, InvalidInput
from feedq.local.process import free_port
from feedq.settings import Settings
from feedq.verbs.catalogs.base import BYTES_MAX, FeedCatalog, open_catalog
from feedq.verbs.manifests import Manifest

# -- directory ---------------------------------------------------------------------------------------


def test_a_directory_is_read_with_its_folders_and_without_what_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "..data").mkdir()
    (tmp_path / "a.yaml").write_text("feeds:\n- {name: a}\n")
    (tmp_path / "below" / "b.json").write_text('[{"name": "b"}]')
    (tmp_path / "..data" / "c.json").write_text('[{"name": "c"}]')
    (tmp_path / "README").write_text("none")
    catalog = opened(kind="directory", path=str(tmp_path))
    assert [(feed.where, feed.spec.name) for feed in manifest(catalog).feeds] == [
        ("a.yaml:2", "a"),
        ("below/b.json: feed 1", "b"),
    ]


@pytest.mark.parametrize("text", ["items: []", "feeds: 3", "feeds: [{name: a}", "- 1", "{'feeds': ]"])
def test_a_file_that_is_no_list_of_feeds_is_a_problem_and_not_an_empty_list(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    found = manifest(opened(kind="directory", path=str(tmp_path)))
    assert (found.feeds, len(found.problems)) == ([], 1)
    assert (found.problems[0].where.startswith("a.yaml"), found.problems[0].name) == (True, None)


# -- http --------------------------------------------------------------------------------------------


@dataclass
class Endpoint:
    """A server that answers with what a test gives it, and keeps what it was asked."""

    pages: dict[str, bytes] = field(default_factory=dict)
    status: int = 200
    extra: dict[str, str] = field(default_factory=dict)
    is_delimited: bool = True
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append({name.lower(): value for name, value in request.headers.items()})
        body = self.pages.get(request.path, b"")
        request.send_response(self.status)
        for name, value in self.extra.items():
            request.send_header(name, value)
        if request.path == "/feeds" and "/more" in self.pages:
            request.send_header("Link", '</more>; rel="next"')
        if self.is_delimited:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    there = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(ConnectionError):  # it may have heard enough
                there.answer(self)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    there.url = f"http://127.0.0.1:{server.server_port}/feeds"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield there
    server.shutdown()
    thread.join()
    server.server_close()


def test_all_pages_are_read_with_the_headers_that_are_set_up(endpoint: Endpoint) -> None:
    endpoint.pages = {"/feeds": b'[{"name": "a"}]', "/more": b'[{"name": "b"}]'}
    catalog = opened(kind="http", url=endpoint.url, headers='{"Authorization": "Bearer secret"}')
    assert feeds(catalog) == [{"name": "a"}, {"name": "b"}]
    assert {request["authorization"] for request in endpoint.asked} == {"Bearer secret"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": 404}, "has nothing there; check url"),
        ({"status": 401}, "refuses our credentials; check headers"),
        ({"status": 503}, "503"),
        ({"status": 204}, "without a complete body"),
        ({"is_delimited": False}, "without a complete body"),
        ({"pages": {"/feeds": b"\xff\xfe"}}, "is not UTF-8 text"),
        ({"extra": {"Content-Encoding": "br"}}, "content encoding"),
    ],
)
def test_an_answer_that_is_no_list_is_an_error(
    endpoint: Endpoint, changes: dict[str, Any], said: str
) -> None:
    endpoint.pages = {"/feeds": b"[]"}
    for name, value in changes.items():
        setattr(endpoint, name, value)
    with pytest.raises(CatalogUnavailable, match=said):
        opened(kind="http", url=endpoint.url).read(Settings())


def test_a_large_answer_is_refused_and_an_address_that_is_denied_not_asked(endpoint: Endpoint) -> None:
    endpoint.pages = {"/feeds": b" " * (BYTES_MAX + 1)}
    with pytest.raises(CatalogUnavailable, match="more than"):
        opened(kind="http", url=endpoint.url).read(Settings())
    denied = Settings(catalogs={"crm": {"kind": "http", "url": endpoint.url}}, egress_deny=("127.0.0.0/8",))
    endpoint.asked.clear()
    with pytest.raises(CatalogUnavailable, match=r"127\.0\.0\.1"):
        open_catalog("crm", denied).read(denied)
    assert endpoint.asked == []


def test_a_url_that_cannot_be_one_is_named_at_once() -> None:
    with pytest.raises(InvalidInput, match=r"catalog 'crm': http\.url"):
        opened(kind="http", url="ftp://host/x")


# -- sql ---------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "crm.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE stations (code TEXT, url TEXT, options TEXT, weight NUMERIC, note TEXT)"
        )
        connection.execute(
            "INSERT INTO stations VALUES ('a', 'tcp://a:1', '{\"cursor\": \"/seq\"}', 2, NULL), "
            "('b', 'tcp://b:1', NULL, 1.5, NULL)"
        )
    return path


def asked(database: Path, query: str, **options: Any) -> FeedCatalog:
    return opened(kind="sql", url=f"sqlite:///{database}", query=query, **options)


def test_a_column_is_a_key_and_dots_lead_below(database: Path) -> None:
    columns = "'x/' || code AS name, options AS source, url AS \"source.url\", weight, note AS tenant"
    query = f"SELECT {columns} FROM stations"
    catalog = asked(database, query)
    assert feeds(catalog) == [
        {"name": "x/a", "source": {"cursor": "/seq", "url": "tcp://a:1"}, "weight": 2},
        {"name": "x/b", "source": {"url": "tcp://b:1"}, "weight": 1.5},
    ]


def test_one_column_is_the_whole_feed(database: Path) -> None:
    query = "SELECT json_object('name', code, 'source', json_object('url', url)) FROM stations ORDER BY code"
    assert feeds(asked(database, query)) == [
        {"name": "a", "source": {"url": "tcp://a:1"}},
        {"name": "b", "source": {"url": "tcp://b:1"}},
    ]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT code AS name, url AS source FROM stations", "source: is not JSON"),
        ("SELECT x'00' AS name, 1 AS weight", "name: is of the type bytes"),
        ("SELECT '{\"name\": ' AS feed", "the document: is not JSON"),
        ('SELECT 1 AS "source.url.x", 2 AS "source.url.x.y"', "source.url.x.y: x is also given"),
    ],
)
def test_a_row_that_is_no_feed_is_a_problem(database: Path, query: str, said: str) -> None:
    assert said in mistakes(asked(database, query))[0]


@pytest.mark.parametrize("query", ["SELECT nothing FROM stations", "SELEC 1", "DELETE FROM nowhere"])
def test_a_query_that_fails_is_an_error(database: Path, query: str) -> None:
    with pytest.raises(CatalogUnavailable, match=r"crm\.sqlite"):
        asked(database, query).read(Settings())


def test_nothing_that_a_query_writes_stays(database: Path) -> None:
    asked(database, "DELETE FROM stations RETURNING json_object('name', code) AS feed").read(Settings())
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM stations").fetchone() == (2,)


def test_a_query_without_an_end_is_given_up(database: Path) -> None:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    endless = f"{numbers} SELECT 'f' || i AS name, 1 AS weight FROM n"
    with pytest.raises(CatalogUnavailable, match=r"not read completely within|more than 100000 entries"):
        asked(database, endless, timeout_s=0.2).read(Settings())


@pytest.mark.parametrize(
    "url", ["nonsense", "carrier://host/pigeon", "postgresql://user:hunter2@127.0.0.1:1/x"]
)
def test_a_database_that_is_away_is_said_without_its_password(url: str) -> None:
    with pytest.raises(CatalogUnavailable) as raised:
        opened(kind="sql", url=url, query="SELECT 1", timeout_s=1).read(Settings())
    assert "hunter2" not in str(raised.value)
    assert ("nothing listens there" in str(raised.value)) is ("127.0.0.1" in url)


PATIENCE_S = 30.0

PIPELINE = '[{"$match": {"enabled": true}}, {"$project": {"name": "$code", "source": 1}}]'

Stations = Collection[dict[str, Any]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("mongodb")
    port = free_port()
    program = Path(sys.executable).with_name("nx-27017")
    where = ["--db", "memory", "-p", str(port), "--pid-file", str(directory / "pid")]
    with (directory / "log").open("w") as log:
        server = subprocess.Popen(
            [str(program), *where, "--log-file", str(directory / "log2")],
            stdout=log,
            stderr=log,
            cwd=directory,
        )
    found = f"mongodb://127.0.0.1:{port}/?directConnection=true"
    try:
        until = time.monotonic() + PATIENCE_S
        with pymongo.MongoClient[dict[str, Any]](found, serverSelectionTimeoutMS=1_000) as client:
            while True:
                try:
                    client.admin.command("ping")
                    break
                except PyMongoError:
                    assert time.monotonic() < until, (directory / "log").read_text()
        yield found
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def stations(url: str) -> Iterator[Stations]:
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        yield client["crm"][f"stations_{uuid4().hex}"]


def station(code: str) -> dict[str, Any]:
    return {"code": code, "enabled": True, "source": {"url": f"tcp://{code}:1"}}


def asked_of_mongodb(url: str, stations: Stations, **options: Any) -> FeedCatalog:
    given = {
        "kind": "mongodb",
        "url": url,
        "database": "crm",
        "collection": stations.name,
        "pipeline": PIPELINE,
        "timeout_s": "20",
    }
    return opened(**given | options)


def test_documents_become_feeds(url: str, stations: Stations) -> None:
    stations.insert_many([station("a"), station("b"), station("off") | {"enabled": False}])
    catalog = asked_of_mongodb(url, stations)
    assert feeds(catalog) == [
        {"name": "a", "source": {"url": "tcp://a:1"}},
        {"name": "b", "source": {"url": "tcp://b:1"}},
    ]


def test_what_json_does_not_have_becomes_text_or_a_problem(url: str, stations: Stations) -> None:
    at = datetime(2026, 11, 25, tzinfo=UTC)
    stations.insert_one({"name": "a", "weight": 2, "labels": {"since": at}})
    stations.insert_one({"name": "b", "source": {"raw": b"\0"}})
    found = manifest(asked_of_mongodb(url, stations, pipeline="[]"))
    assert [feed.spec.labels for feed in found.feeds] == [{"since": "2026-11-25T00:00:00"}]
    assert "source: is of the type bytes" in found.problems[0].what


def test_a_server_that_is_away_is_said_without_its_password(stations: Stations) -> None:
    with pytest.raises(CatalogUnavailable, match=r"collection crm\.stations") as raised:
        asked_of_mongodb("mongodb://user:hunter2@127.0.0.1:1/", stations, timeout_s="0.5").read(Settings())
    assert "hunter2" not in str(raised.value)


REGION = "eu-central-1"

KEYS = '{"name": "code", "source.url": "link.url", "labels": "labels"}'


@pytest.fixture(scope="module")
def dynamodb_url() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    # Nothing may be asked_of_dynamodb of the machine's own role.
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def stations_table(dynamodb_url: str, credentials: None) -> Any:
    tables = boto3.resource("dynamodb", region_name=REGION, endpoint_url=dynamodb_url)
    return tables.create_table(
        TableName=f"stations_{uuid4().hex}",
        KeySchema=[{"AttributeName": "code", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "code", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )


def row_of(code: str, **more: Any) -> dict[str, Any]:
    return {"code": code, "link": {"url": f"tcp://{code}:1"}, "enabled": True, **more}


def asked_of_dynamodb(dynamodb_url: str, table: str, **options: str) -> FeedCatalog:
    given = {"kind": "dynamodb", "table": table, "region": REGION, "endpoint_url": dynamodb_url, "keys": KEYS}
    return opened(**given | options)


def test_attributes_become_keys(dynamodb_url: str, stations_table: Any) -> None:
    for item in (
        row_of("a", labels={"zone": "eu"}),
        row_of("b"),
        row_of("off") | {"enabled": False},
    ):
        stations_table.put_item(Item=item)
    catalog = asked_of_dynamodb(dynamodb_url, stations_table.name, only='{"enabled": true}')
    assert feeds(catalog) == [
        {"name": "a", "source": {"url": "tcp://a:1"}, "labels": {"zone": "eu"}},
        {"name": "b", "source": {"url": "tcp://b:1"}},
    ]


def test_a_table_of_several_pages_is_read_to_its_end(dynamodb_url: str, stations_table: Any) -> None:
    # A page holds a megabyte.
    with stations_table.batch_writer() as batch:
        for number in range(40):
            batch.put_item(Item=row_of(f"s{number}", note="x" * 60_000))
    assert len(feeds(asked_of_dynamodb(dynamodb_url, stations_table.name))) == 40


def test_numbers_and_sets_are_plain_and_bytes_are_a_problem(dynamodb_url: str, stations_table: Any) -> None:
    stations_table.put_item(Item={"code": "a", "weight": 2, "tags": {"y", "x"}})
    stations_table.put_item(Item={"code": "b", "raw": b"\0"})
    keys = '{"name": "code", "weight": "weight", "source.tags": "tags", "source.raw": "raw"}'
    found = manifest(asked_of_dynamodb(dynamodb_url, stations_table.name, keys=keys))
    assert [(feed.spec.weight, feed.spec.source) for feed in found.feeds] == [(2.0, {"tags": ["x", "y"]})]
    assert "raw: is of the type Binary" in found.problems[0].what


def test_a_server_that_is_away_and_a_table_that_is_not_there_are_said(dynamodb_url: str) -> None:
    with pytest.raises(CatalogUnavailable, match=r"table nowhere: Could not connect") as raised:
        asked_of_dynamodb("http://127.0.0.1:1", "nowhere", timeout_s="5").read(Settings())
    assert "hunter2" not in str(raised.value)
    with pytest.raises(CatalogUnavailable, match=r"table nowhere: .*ResourceNotFound"):
        asked_of_dynamodb(dynamodb_url, "nowhere").read(Settings())


@pytest.mark.parametrize("address", ["http://db.example", "ftp://127.0.0.1", "db.example"])
def test_only_this_machine_is_asked_without_tls(address: str) -> None:
    with pytest.raises(InvalidInput, match="must be https; http is for this machine only"):
        asked_of_dynamodb(address, "t")


# -- how tests read a catalog of any kind ------------------------------------------------------------

DEFAULTS = {"connector": "tcp", "sink": {"table": "t"}}


def opened(**options: Any) -> FeedCatalog:
    return open_catalog("crm", Settings(catalogs={"crm": {"defaults": DEFAULTS, **options}}))


def manifest(catalog: FeedCatalog) -> Manifest:
    return catalog.read(Settings())


def feeds(catalog: FeedCatalog) -> list[dict[str, Any]]:
    """What the feeds say besides the defaults, by name."""
    found = manifest(catalog)
    assert not found.problems
    said = [feed.spec.plain() for feed in found.feeds]
    return sorted(
        ({key: value for key, value in one.items() if key not in DEFAULTS} for one in said),
        key=lambda one: str(one["name"]),
    )


def mistakes(catalog: FeedCatalog) -> list[str]:
    return [str(problem) for problem in manifest(catalog).problems]
