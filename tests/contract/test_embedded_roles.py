"""`feedq up` in a directory of a release that ran everything as the superuser."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
from psycopg2 import errors

from feedq.embedded.postgres import SINK, Postgres, make_roles
from feedq.model import FeedSpec
from feedq.store import migrate
from feedq.store.grants import Role
from feedq.store.postgresql import PostgresStore

pytestmark = pytest.mark.servers


@pytest.fixture
def old() -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory(prefix="feedq-roles-") as directory:
        Path(directory).chmod(0o711)
        postgres = Postgres(Path(directory) / "data", settings={"fsync": "off"})
        postgres.start()
        try:
            yield postgres
        finally:
            postgres.kill()


def ask(url: str, statement: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect(url, connect_timeout=5)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []
    finally:
        connection.close()


def test_what_the_superuser_made_is_handed_over_and_passwords_stay_as_they_are(old: Postgres) -> None:
    admin = old.url()
    migrate.upgrade(admin)
    store = PostgresStore(admin)
    store.feeds.add(FeedSpec("acme/orders", "tcp", {"url": "tcp://127.0.0.1:1"}, {"table": "landed"}))
    store.close()
    ask(
        admin,
        "CREATE TABLE landed (n int); CREATE TABLE feedq_checkpoint (n int); CREATE VIEW all_of AS TABLE landed",
    )
    passwords = old.data_dir / "roles"

    urls = make_roles(old, passwords)
    assert make_roles(old, passwords) == urls, "the next start"
    assert passwords.stat().st_mode & 0o077 == 0

    assert migrate.upgrade(urls[Role.MIGRATION]) == []
    ask(urls[SINK], "INSERT INTO landed VALUES (1); ALTER TABLE feedq_checkpoint ADD COLUMN m int")
    assert ask(urls[Role.OPERATOR], "SELECT n FROM all_of") == [(1,)]
    ask(urls[Role.OPERATOR], "CREATE TABLE made_by_hand (n int)")
    ask(urls[SINK], "INSERT INTO made_by_hand VALUES (1)")
    ask(urls[Role.WORKER], "INSERT INTO made_by_hand VALUES (2)")
    assert ask(urls[Role.READER], "SELECT name FROM feedq.feed") == [("acme/orders",)]
    for role in (Role.WORKER, Role.BEAT, Role.FLOWER, Role.READER, SINK):
        with pytest.raises(errors.InsufficientPrivilege):
            ask(urls[role], "UPDATE feedq.feed SET source = '{}'")
