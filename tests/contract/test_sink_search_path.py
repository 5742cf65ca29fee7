"""Landings stay out of the control tables' schema, also for a database user of that name."""

from __future__ import annotations

from uuid import uuid4

import psycopg2

from feedq.control.store import migrate
from feedq.sinks.base import Fenced, FenceRequest, Target
from feedq.sinks.postgresql import PostgresSink
from tests.fakes.sink import IDENTITY


def test_a_user_named_like_the_control_schema_lands_in_public(database_url: str) -> None:
    migrate.upgrade(database_url)
    default_path = database_url + "?options=-csearch_path%3D%22%24user%22%2Cpublic"
    with psycopg2.connect(default_path) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT current_user, current_schema()")
        assert cursor.fetchone() == ("feedq", "feedq"), (
            "the premise: this user's first schema is the control's"
        )
    sink = PostgresSink(default_path, environment="test", worker_id=uuid4(), role="fencer")
    request = FenceRequest(1, "a", 1, Target("landed", "json"), IDENTITY)
    (outcome,) = sink.fence([request], lock_timeout_s=1.0)
    sink.close()
    assert isinstance(outcome, Fenced)
    with psycopg2.connect(database_url) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename IN ('landed', 'feedq_checkpoint')"
        )
        assert cursor.fetchall() == [("public",)]


def test_migrating_does_not_move_where_the_users_own_tables_go(database_url: str) -> None:
    migrate.upgrade(database_url)
    with psycopg2.connect(database_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT current_schema()")
        assert cursor.fetchone() == ("public",)
