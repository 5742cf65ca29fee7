"""What each kind of catalog gives of what it reads, and when it gives nothing."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from feedq.errors import CatalogUnavailable, InvalidInput
from feedq.settings import Settings
from feedq.verbs.catalogs.base import BYTES_MAX, OpenCatalog, open_catalog
from tests.contract.catalog_reading import feeds, manifest, mistakes, opened, version

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
    before = version(catalog)
    (tmp_path / "a.yaml").write_text("feeds:\n- {name: z}\n")
    assert version(catalog) != before
    assert feeds(catalog) == [{"name": "b"}, {"name": "z"}]


@pytest.mark.parametrize("text", ["items: []", "feeds: 3", "feeds: [{name: a}", "- 1", "{'feeds': ]"])
def test_a_file_that_is_no_list_of_feeds_is_a_problem_and_not_an_empty_list(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    found = manifest(opened(kind="directory", path=str(tmp_path)))
    assert (found.feeds, len(found.problems)) == ((), 1)
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


def test_the_content_of_an_answer_is_compared_with_the_last_one(endpoint: Endpoint) -> None:
    endpoint.pages = {"/feeds": b'[{"name": "a"}]'}
    catalog = opened(kind="http", url=endpoint.url, headers='{"Authorization": "Bearer secret"}')
    before = version(catalog)
    assert {request["authorization"] for request in endpoint.asked} == {"Bearer secret"}
    endpoint.pages = {"/feeds": b'[{"name": "b"}]'}
    assert version(catalog) != before
    assert feeds(catalog) == [{"name": "b"}]


def test_all_pages_are_read(endpoint: Endpoint) -> None:
    endpoint.pages = {"/feeds": b'[{"name": "a"}]', "/more": b'[{"name": "b"}]'}
    catalog = opened(kind="http", url=endpoint.url)
    assert feeds(catalog) == [{"name": "a"}, {"name": "b"}]
    assert version(catalog)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": 404}, "has nothing there; check url"),
        ({"status": 401}, "refuses our credentials; check headers"),
        ({"status": 503}, "503"),
        ({"status": 204}, "without a whole content"),
        ({"is_delimited": False}, "without a whole content"),
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
        opened(kind="http", url=endpoint.url).read(None)


def test_a_large_answer_is_refused_and_an_address_that_is_denied_not_asked(endpoint: Endpoint) -> None:
    endpoint.pages = {"/feeds": b" " * (BYTES_MAX + 1)}
    with pytest.raises(CatalogUnavailable, match="more than"):
        opened(kind="http", url=endpoint.url).read(None)
    denied = Settings(catalogs={"crm": {"kind": "http", "url": endpoint.url}}, egress_deny=("127.0.0.0/8",))
    endpoint.asked.clear()
    with pytest.raises(CatalogUnavailable, match=r"127\.0\.0\.1"):
        open_catalog("crm", denied).read(None)
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


def asked(database: Path, query: str, **options: Any) -> OpenCatalog:
    return opened(kind="sql", url=f"sqlite:///{database}", query=query, **options)


def test_a_column_is_a_key_and_dots_lead_below(database: Path) -> None:
    columns = "'x/' || code AS name, options AS source, url AS \"source.url\", weight, note AS tenant"
    query = f"SELECT {columns} FROM stations"
    catalog = asked(database, query)
    assert feeds(catalog) == [
        {"name": "x/a", "source": {"cursor": "/seq", "url": "tcp://a:1"}, "weight": 2},
        {"name": "x/b", "source": {"url": "tcp://b:1"}, "weight": 1.5},
    ]
    before = version(catalog)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE stations SET rowid = 3 WHERE code = 'a'")
    assert version(catalog) == before  # in another order
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE stations SET weight = 3 WHERE code = 'a'")
    assert version(catalog) != before
    assert version(asked(database, query, removals_max=0.2)) != version(catalog)


def test_one_column_is_the_whole_feed(database: Path) -> None:
    query = "SELECT json_object('name', code, 'source', json_object('url', url)) FROM stations ORDER BY code"
    assert feeds(asked(database, query)) == [
        {"name": "a", "source": {"url": "tcp://a:1"}},
        {"name": "b", "source": {"url": "tcp://b:1"}},
    ]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT code AS name, url AS source FROM stations", "source: is no JSON"),
        ("SELECT x'00' AS name, 1 AS weight", "name: is of the type bytes"),
        ("SELECT '{\"name\": ' AS feed", "the document: is no JSON"),
        ('SELECT 1 AS "source.url.x", 2 AS "source.url.x.y"', "source.url.x.y: x is given as well"),
    ],
)
def test_a_row_that_is_no_feed_is_a_problem(database: Path, query: str, said: str) -> None:
    assert said in mistakes(asked(database, query))[0]


@pytest.mark.parametrize("query", ["SELECT nothing FROM stations", "SELEC 1", "DELETE FROM nowhere"])
def test_a_query_that_fails_is_an_error(database: Path, query: str) -> None:
    with pytest.raises(CatalogUnavailable, match=r"crm\.sqlite"):
        asked(database, query).read(None)


def test_nothing_that_a_query_writes_stays(database: Path) -> None:
    asked(database, "DELETE FROM stations RETURNING json_object('name', code) AS feed").read(None)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM stations").fetchone() == (2,)


def test_a_query_without_an_end_is_given_up(database: Path) -> None:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    endless = f"{numbers} SELECT 'f' || i AS name, 1 AS weight FROM n"
    with pytest.raises(CatalogUnavailable, match=r"not read whole within|more than 100000 entries"):
        asked(database, endless, timeout_s=0.2).read(None)


@pytest.mark.parametrize(
    "url", ["nonsense", "carrier://host/pigeon", "postgresql://user:hunter2@127.0.0.1:1/x"]
)
def test_a_database_that_is_away_is_said_without_its_password(url: str) -> None:
    with pytest.raises(CatalogUnavailable) as raised:
        opened(kind="sql", url=url, query="SELECT 1", timeout_s=1).read(None)
    assert "hunter2" not in str(raised.value)
    assert ("nothing listens there" in str(raised.value)) is ("127.0.0.1" in url)


def test_a_catalog_shows_no_secret() -> None:
    given = {"kind": "sql", "url": "postgresql://user:hunter2@host/x", "query": "SELECT 1"}
    settings = Settings(catalogs={"crm": given})
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in repr(open_catalog("crm", settings))
