"""The `mongodb` catalog against a server that speaks MongoDB's protocol.

It is NX-27017, which keeps its documents in SQLite: a MongoDB cannot be had as a package.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pymongo
import pytest
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from feedq.errors import CatalogUnavailable
from feedq.verbs.catalogs.base import OpenCatalog
from tests.contract.catalog_reading import feeds, manifest, opened, version

PATIENCE_S = 30.0
PIPELINE = '[{"$match": {"enabled": true}}, {"$project": {"name": "$code", "source": 1}}]'

Stations = Collection[dict[str, Any]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("mongodb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
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


def asked(url: str, stations: Stations, **options: Any) -> OpenCatalog:
    given = {
        "kind": "mongodb",
        "url": url,
        "database": "crm",
        "collection": stations.name,
        "pipeline": PIPELINE,
        "timeout_s": "20",
    }
    return opened(**given | options)


def test_documents_are_read_and_compared_with_those_of_the_last_time(url: str, stations: Stations) -> None:
    stations.insert_many([station("a"), station("b"), station("off") | {"enabled": False}])
    catalog = asked(url, stations)
    assert feeds(catalog) == [
        {"name": "a", "source": {"url": "tcp://a:1"}},
        {"name": "b", "source": {"url": "tcp://b:1"}},
    ]
    before = version(catalog)
    stations.delete_one({"code": "a"})
    assert version(catalog) != before
    assert [feed["name"] for feed in feeds(catalog)] == ["b"]


def test_what_json_does_not_have_becomes_text_or_a_problem(url: str, stations: Stations) -> None:
    at = datetime(2026, 11, 25, tzinfo=UTC)
    stations.insert_one({"name": "a", "weight": 2, "labels": {"since": at}})
    stations.insert_one({"name": "b", "source": {"raw": b"\0"}})
    found = manifest(asked(url, stations, pipeline="[]"))
    assert [feed.spec.labels for feed in found.feeds] == [{"since": "2026-11-25T00:00:00"}]
    assert "source: is of the type bytes" in found.problems[0].what


def test_a_server_that_is_away_is_said_without_its_password(stations: Stations) -> None:
    with pytest.raises(CatalogUnavailable, match=r"collection crm\.stations") as raised:
        asked("mongodb://user:hunter2@127.0.0.1:1/", stations, timeout_s="0.5").read(None)
    assert "hunter2" not in str(raised.value)
