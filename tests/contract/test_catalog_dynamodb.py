"""The `dynamodb` catalog against moto's server, on loopback: a DynamoDB cannot be had as a package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import boto3
import pytest
from moto.server import ThreadedMotoServer

from feedq.errors import CatalogUnavailable, InvalidInput
from feedq.verbs.catalogs.base import OpenCatalog
from tests.contract.catalog_reading import feeds, manifest, opened, version

REGION = "eu-central-1"
KEYS = '{"name": "code", "source.url": "link.url", "labels": "labels"}'


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    # Nothing may be asked of the machine's own role.
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def stations(url: str, credentials: None) -> Any:
    tables = boto3.resource("dynamodb", region_name=REGION, endpoint_url=url)
    return tables.create_table(
        TableName=f"stations_{uuid4().hex}",
        KeySchema=[{"AttributeName": "code", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "code", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )


def station(code: str, **more: Any) -> dict[str, Any]:
    return {"code": code, "link": {"url": f"tcp://{code}:1"}, "enabled": True, **more}


def asked(url: str, table: str, **options: str) -> OpenCatalog:
    given = {"kind": "dynamodb", "table": table, "region": REGION, "endpoint_url": url, "keys": KEYS}
    return opened(**given | options)


def test_attributes_become_keys_and_what_has_not_changed_is_said_to(url: str, stations: Any) -> None:
    for item in (station("a", labels={"zone": "eu"}), station("b"), station("off") | {"enabled": False}):
        stations.put_item(Item=item)
    catalog = asked(url, stations.name, only='{"enabled": true}')
    assert feeds(catalog) == [
        {"name": "a", "source": {"url": "tcp://a:1"}, "labels": {"zone": "eu"}},
        {"name": "b", "source": {"url": "tcp://b:1"}},
    ]
    before = version(catalog)
    stations.delete_item(Key={"code": "a"})
    assert version(catalog) != before
    assert [feed["name"] for feed in feeds(catalog)] == ["b"]


def test_a_table_of_several_pages_is_read_to_its_end(url: str, stations: Any) -> None:
    # A page holds a megabyte.
    with stations.batch_writer() as batch:
        for number in range(40):
            batch.put_item(Item=station(f"s{number}", note="x" * 60_000))
    assert len(feeds(asked(url, stations.name))) == 40


def test_numbers_and_sets_are_plain_and_bytes_are_a_problem(url: str, stations: Any) -> None:
    stations.put_item(Item={"code": "a", "weight": 2, "tags": {"y", "x"}})
    stations.put_item(Item={"code": "b", "raw": b"\0"})
    keys = '{"name": "code", "weight": "weight", "source.tags": "tags", "source.raw": "raw"}'
    found = manifest(asked(url, stations.name, keys=keys))
    assert [(feed.spec.weight, feed.spec.source) for feed in found.feeds] == [(2.0, {"tags": ["x", "y"]})]
    assert "raw: is of the type Binary" in found.problems[0].what


def test_a_server_that_is_away_and_a_table_that_is_not_there_are_said(url: str) -> None:
    with pytest.raises(CatalogUnavailable, match=r"table nowhere: Could not connect") as raised:
        asked("http://127.0.0.1:1", "nowhere", timeout_s="5").read(None)
    assert "hunter2" not in str(raised.value)
    with pytest.raises(CatalogUnavailable, match=r"table nowhere: .*ResourceNotFound"):
        asked(url, "nowhere").read(None)


@pytest.mark.parametrize("address", ["http://db.example", "ftp://127.0.0.1", "db.example"])
def test_only_this_machine_is_asked_without_tls(address: str) -> None:
    with pytest.raises(InvalidInput, match="must be https; http is for this machine only"):
        asked(address, "t")
