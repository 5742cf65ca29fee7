"""What a feed is known by in its sinks: a uuid for good, an installation, and numbers that do not recur."""

from __future__ import annotations

import pytest
from alembic import command
from sqlalchemy import text

from feedq.embedded.postgres import Postgres
from feedq.model import FeedSpec
from feedq.store import migrate
from feedq.store.database import connect_once, session_once
from feedq.store.postgresql import PostgresStore

pytestmark = pytest.mark.servers

SPEC = FeedSpec("acme/orders", "tcp", {"url": "tcp://127.0.0.1:1"}, {"table": "t"})
MILLION = 10**6


def test_control_databases_give_out_different_numbers_and_a_feed_its_uuid_for_good(
    postgres: Postgres, database_url: str
) -> None:
    other_url = postgres.create_database("identity_of_another")
    stores = []
    for url in (database_url, other_url):
        migrate.upgrade(url)
        stores.append(PostgresStore(url))
    one, other = (store.feeds.add(SPEC) for store in stores)
    try:
        assert min(one.id, other.id, abs(one.id - other.id)) >= MILLION
        assert max(one.id, other.id) < 2**51
        assert one.identity.installation != other.identity.installation
        store = stores[0]
        assert store.feeds.restart(SPEC.name).identity == one.identity
        assert store.feeds.get(SPEC.name).identity == one.identity
        store.feeds.remove(SPEC.name)
        again = store.feeds.add(SPEC)
        assert again.identity.feed != one.identity.feed
        assert again.identity.installation == one.identity.installation
    finally:
        for store in stores:
            store.close()
        postgres.drop_database("identity_of_another")


def test_feeds_of_the_release_before_keep_their_numbers(database_url: str) -> None:
    with session_once(database_url) as connection:
        connection.execute(text("CREATE SCHEMA feedq"))
        connection.commit()
        config = migrate._config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0011")
    with connect_once(database_url) as connection:
        connection.execute(
            text(
                "INSERT INTO feedq.feed (name, connector, source, sink) "
                "SELECT 'f/' || n, 'tcp', '{}', '{}' FROM generate_series(1, 3) AS n"
            )
        )
        connection.commit()
    migrate.upgrade(database_url)
    migrate.upgrade(database_url)
    store = PostgresStore(database_url)
    try:
        old = [store.feeds.get(f"f/{n}") for n in (1, 2, 3)]
        assert [feed.id for feed in old] == [1, 2, 3]
        assert len({feed.identity and feed.identity.feed for feed in old}) == 3
        assert store.feeds.add(SPEC).id >= MILLION
    finally:
        store.close()
