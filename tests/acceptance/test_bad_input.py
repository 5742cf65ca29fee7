"""Bad declarations, bad records and bad sources: each gets a clear error, and nobody else is disturbed."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from feedq.local.process import free_port
from tests.cluster import Cluster, Place, Row, feed, wait_until
from tests.invariants import landed, wait_streaming
from tests.source import SPOILED_EVERY
from tests.source_process import Source

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

STATUS_LIMIT_S = 40.0
SILENT_AFTER_S = 1.0

TABLES = """
    CREATE TABLE narrow (seq bigint);
    CREATE TABLE typed (seq bigint, at date);
    CREATE TABLE strict (seq bigint, need text NOT NULL);
"""
OF_OTHERS = """
    CREATE TABLE forbidden (feed text, epoch bigint, received_at timestamptz, payload jsonb);
    CREATE ROLE limited LOGIN PASSWORD 'limited';
    CREATE SCHEMA limited AUTHORIZATION limited;
"""


def columns(table: str, **columns: str) -> dict[str, Any]:
    return {"name": "default", "table": table, "columns": columns}


def declarations(source: Source, *, closed_port: int, mute_port: int) -> list[dict[str, Any]]:
    """A feed for each kind of trouble, and one without any."""
    return [
        feed("bad/none", source.url),
        feed("bad/no-table", source.url) | {"sink": columns("nowhere", seq="/seq")},
        feed("bad/no-column", source.url) | {"sink": columns("narrow", seq="/seq", pad="/pad")},
        feed("bad/wrong-type", source.url) | {"sink": columns("typed", seq="/seq", at="/pad")},
        feed("bad/no-value", source.url) | {"sink": columns("strict", seq="/seq", need="/absent")},
        feed("bad/forbidden", source.url) | {"sink": {"name": "limited", "table": "public.forbidden"}},
        feed("bad/oversize", source.url, max_record_bytes=64),
        feed("bad/spoiled", source.url, table="spoiled"),
        feed("bad/garbage", source.url, table="garbage"),
        feed("bad/silent", source.url, idle_timeout_s=SILENT_AFTER_S),
        feed("bad/mute", f"tcp://127.0.0.1:{mute_port}", idle_timeout_s=SILENT_AFTER_S),
        feed("bad/refused", f"tcp://127.0.0.1:{closed_port}"),
        feed("bad/reset", source.url),
        feed("bad/unknown-host", "tcp://no-such-host.invalid:7001"),
    ]


class Fleet:
    """A small cluster that runs all of them at once."""

    def __init__(self, cluster: Cluster, source: Source) -> None:
        self.cluster = cluster
        self.source = source

    def wait(self, name: str, condition: Callable[[Row], Any]) -> Row:
        wait_until(
            lambda: condition(self.cluster.leases()[name]),
            limit_s=STATUS_LIMIT_S,
            interval_s=0.1,
            what=lambda: f"{name} as expected; it is {self.cluster.leases()[name]}",
        )
        return self.cluster.leases()[name]

    def wait_failed(self, name: str) -> str:
        """Wait until the feed is given up; returns why."""
        row = self.wait(name, lambda row: row.state == "idle" and row.reason == "failed")
        assert row.last_error
        return row.last_error

    def wait_trouble(self, name: str, pattern: str) -> None:
        """Wait until the feed's last error says so; it must be tried again, not be given up."""
        self.wait(name, lambda row: re.search(pattern, row.last_error or "", re.IGNORECASE))
        assert self.cluster.leases()[name].reason != "failed"

    def dead_letters(self, name: str) -> list[dict[str, Any]]:
        return self.cluster.sql("SELECT * FROM feedq_dead_letter WHERE feed = %s ORDER BY id", (name,))


@pytest.fixture(scope="module")
def fleet(place: Place) -> Iterator[Fleet]:
    limited = re.sub(r"//[^@]+@", "//limited:limited@", place.database_url)
    mute = socket.socket()
    mute.bind(("127.0.0.1", 0))
    mute.listen(64)  # the kernel accepts, and nobody ever answers
    with (
        Source(rate=20) as source,
        place.cluster(
            env={"FEEDQ_SINKS__LIMITED": limited},
        ) as cluster,
    ):
        cluster.make(TABLES)
        cluster.sql(OF_OTHERS)
        source.behave("spoiled", ["bad/spoiled"])
        source.behave("garbage", ["bad/garbage"])
        source.behave("silent", ["bad/silent"])
        source.behave("reset", ["bad/reset"])
        cluster.add_beat("b1")
        cluster.add_worker("w1")
        ports = {"closed_port": free_port(), "mute_port": mute.getsockname()[1]}
        cluster.apply(declarations(source, **ports))
        yield Fleet(cluster, source)
    mute.close()
    with psycopg2.connect(place.database_url) as connection, connection.cursor() as cursor:
        cursor.execute("DROP OWNED BY limited; DROP ROLE limited")
    connection.close()


def test_a_declaration_that_cannot_be_right_is_refused_with_every_reason(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    wrong = [
        feed("wrong/connector", "tcp://127.0.0.1:1") | {"connector": "carrier-pigeon"},
        feed("wrong/url", "http//nonsense"),
        feed("wrong/option", "tcp://127.0.0.1:1", speed="fast"),
        feed("wrong/sink", "tcp://127.0.0.1:1") | {"sink": {"name": "default"}},
        feed("wrong/pointer", "tcp://127.0.0.1:1") | {"sink": columns("t", seq="seq")},
    ]
    with Cluster(tmp_path, database_url=database_url, broker_url=broker_url) as cluster:
        file = tmp_path / "wrong.json"
        file.write_text(json.dumps({"feeds": [*wrong, feed("right/one", "tcp://127.0.0.1:1")]}))
        ran = cluster.run("apply", "-f", str(file))
        assert ran.returncode == 2, ran.stdout + ran.stderr
        for name in (declared["name"] for declared in wrong):
            assert name in ran.stderr
        for why in ("carrier-pigeon", "source.url", "source.speed", "sink.table", "sink.columns"):
            assert why in ran.stderr
        assert "Traceback" not in ran.stderr
        assert cluster.sql("SELECT * FROM feedq.feed") == []


def test_a_table_that_does_not_exist_fails_the_feed_until_it_is_mended(fleet: Fleet) -> None:
    assert "nowhere" in fleet.wait_failed("bad/no-table")
    fleet.cluster.make("CREATE TABLE nowhere (seq bigint)")
    fleet.cluster.feedq("feed", "restart", "bad/no-table")
    wait_streaming(fleet.source, ["bad/no-table"])
    wait_until(
        lambda: fleet.cluster.sql("SELECT 1 FROM nowhere WHERE seq = 1"), limit_s=20, what="record 1 landed"
    )


def test_a_column_that_the_table_lacks_fails_the_feed(fleet: Fleet) -> None:
    why = fleet.wait_failed("bad/no-column")
    assert "narrow" in why
    assert "pad" in why


def test_a_sink_without_permission_fails_the_feed_and_shows_no_password(fleet: Fleet) -> None:
    why = fleet.wait_failed("bad/forbidden")
    assert "public.forbidden" in why
    assert "GRANT INSERT" in why
    assert "limited:limited" not in why + fleet.cluster.workers["w1"].text()


def test_a_record_over_the_limit_fails_the_feed_and_says_which_option_to_raise(fleet: Fleet) -> None:
    assert "max_record_bytes" in fleet.wait_failed("bad/oversize")


@pytest.mark.parametrize("name", ["bad/wrong-type", "bad/no-value"])
def test_records_that_do_not_fit_their_columns_become_dead_letters(fleet: Fleet, name: str) -> None:
    fleet.wait(name, lambda row: row.dead_letters_total >= 5)
    letters = fleet.dead_letters(name)
    seqs = [json.loads(bytes(letter["record"]))["seq"] for letter in letters]
    assert seqs == list(range(1, len(seqs) + 1))
    assert all(letter["error"] for letter in letters)


def test_records_that_are_no_json_become_dead_letters_and_the_others_land(fleet: Fleet) -> None:
    # Four kinds of bad lines, each several times.
    fleet.wait("bad/spoiled", lambda row: row.records_total >= 12 * SPOILED_EVERY)
    wait_until(
        lambda: landed(fleet.cluster, table="spoiled")["bad/spoiled"].last >= 12 * SPOILED_EVERY,
        limit_s=20,
        what="the good records landed",
    )
    good = landed(fleet.cluster, table="spoiled")["bad/spoiled"]
    assert good.count == good.distinct == good.last
    letters = [bytes(letter["record"]) for letter in fleet.dead_letters("bad/spoiled")]
    assert len(letters) >= 11
    assert {b"this is no JSON", b'{"nul": "a\\u0000b"}'} < set(letters)
    assert any(b"\xff\xfe" in letter for letter in letters)


def test_garbage_becomes_a_dead_letter_and_does_not_stop_the_feed(fleet: Fleet) -> None:
    wait_until(lambda: fleet.dead_letters("bad/garbage"), limit_s=20, what="garbage is a dead letter")
    fleet.source.behave("stream", ["bad/garbage"])
    wait_until(
        lambda: "bad/garbage" in landed(fleet.cluster, table="garbage"),
        limit_s=20,
        what="records behind the garbage land",
    )


def test_a_source_that_falls_silent_is_stalled_and_connected_anew(fleet: Fleet) -> None:
    def attempts() -> int:
        return sum(c.feed == "bad/silent" for c in fleet.source.connections())

    wait_until(lambda: attempts() >= 2, limit_s=20, what="the silent source was connected to again")
    fleet.source.behave("stream", ["bad/silent"])
    wait_streaming(fleet.source, ["bad/silent"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bad/mute", "silent|nothing|idle|no byte"),
        ("bad/refused", "refused"),
        ("bad/unknown-host", "no-such-host.invalid"),
    ],
)
def test_a_source_that_cannot_be_had_is_tried_again_and_named(fleet: Fleet, name: str, said: str) -> None:
    fleet.wait_trouble(name, said)


def test_a_source_that_resets_is_tried_again_until_it_streams(fleet: Fleet) -> None:
    fleet.wait_trouble("bad/reset", "reset|closed|broke")
    fleet.source.behave("stream", ["bad/reset"])
    wait_streaming(fleet.source, ["bad/reset"])


def test_none_of_this_disturbs_a_healthy_feed_of_the_same_worker(fleet: Fleet) -> None:
    sent = fleet.source.sent()["bad/none"]
    wait_until(
        lambda: landed(fleet.cluster)["bad/none"].last >= sent, limit_s=20, what="the healthy feed landed"
    )
    healthy = landed(fleet.cluster)["bad/none"]
    assert healthy.count == healthy.distinct == healthy.last
    assert [c.closed_at for c in fleet.source.connections() if c.feed == "bad/none"] == [None]
    assert fleet.cluster.leases()["bad/none"].epoch == 1
