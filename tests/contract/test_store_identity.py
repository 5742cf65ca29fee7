"""What a feed is known by in its sinks: a uuid for good, an installation, and numbers that do not recur."""

from __future__ import annotations

import pytest

from feedq.control.store import migrate
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import FeedSpec
from feedq.local.postgres import Postgres

pytestmark = pytest.mark.servers

SPEC = FeedSpec(name="acme/orders", connector="tcp", source={"url": "tcp://127.0.0.1:1"}, sink={"table": "t"})
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
