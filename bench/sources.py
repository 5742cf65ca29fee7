"""The same records over TCP, WebSocket, server-sent events and an endless HTTP response, into jsonb tables.

A feed of each kind is timed alone, end to end through a real worker: from the moment the sender sends the first
record to the commit of the last one, as the feed's checkpoint says. Every kind gets the same record bytes from the
same kind of sender (`bench.senders`), one message or event a record. A round measures all kinds in turn, each
round in another order; a ratio is one of a round's rates to the TCP rate of the same round, and the figure is the
median over the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.report import Figure, at_least, say
from bench.senders import Sender
from bench.servers import running
from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from tests.cluster import HELLO, Cluster, wait_until

RECORDS = 1_000_000
PAD = 105
"""Makes lines of about 170 bytes."""
ROUNDS = 3
RATIO_MUST = 0.5
LIMIT_S = 180.0

SOURCES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "tcp": ("tcp", {"hello": HELLO, "cursor": "/seq"}),
    # The sender answers no pings.
    "websocket": ("websocket", {"cursor": "/seq", "ping_interval_s": 0}),
    "sse": ("sse", {}),
    "ndjson": ("http", {"cursor": "/seq"}),
}
"""Kinds of senders, and the connector and its options that read each."""
NAMES: Final = {
    "websocket": "one fast websocket feed",
    "sse": "one fast sse feed",
    "ndjson": "one fast NDJSON feed",
}


def measure(directory: Path, *, records: int = RECORDS, rounds: int = ROUNDS) -> Iterator[Figure]:
    with running(directory) as (postgres, valkey):
        rates = [_round(directory, postgres, valkey, number=n, records=records) for n in range(rounds)]
    for kind, name in NAMES.items():
        ratio = statistics.median(rate[kind] / rate["tcp"] for rate in rates)
        runs = ", ".join(f"{rate[kind] / 1000:.0f}k/{rate['tcp'] / 1000:.0f}k rows/s" for rate in rates)
        yield at_least(f"{name} / one fast TCP feed", RATIO_MUST, ratio, runs=runs)


def _round(
    directory: Path, postgres: Postgres, valkey: Valkey, *, number: int, records: int
) -> dict[str, float]:
    # In turn: what the machine does meanwhile should not favour the same kind each time.
    kinds = list(SOURCES)
    kinds = kinds[number % len(kinds) :] + kinds[: number % len(kinds)]
    rates = {}
    for kind in kinds:
        database = f"sources{number}_{kind}"
        url = postgres.create_database(database)
        rates[kind] = _feed(directory, url, valkey.url(), kind, records=records)
        postgres.drop_database(database)
        say(f"sources, round {number + 1}: {kind} {rates[kind]:,.0f} rows/s")
    return rates


def _feed(directory: Path, url: str, broker_url: str, kind: str, *, records: int) -> float:
    connector, options = SOURCES[kind]
    with (
        Sender(kind, count=records, pad=PAD) as sender,
        Cluster(directory, database_url=url, broker_url=broker_url) as cluster,
    ):
        cluster.add_beat("beat")
        cluster.add_worker("w1", capacity=10)
        cluster.apply(
            [
                {
                    "name": f"fast/{kind}",
                    "connector": connector,
                    "source": {"url": sender.url, **options},
                    "sink": {"name": "default", "table": "landed"},
                }
            ]
        )
        wait_until(
            lambda: cluster.sql("SELECT 1 FROM pg_tables WHERE tablename = 'feedq_checkpoint'"),
            "the sink has its checkpoint table",
        )
        done = wait_until(
            lambda: cluster.sql("SELECT 1 FROM feedq_checkpoint WHERE records >= %s", (records,)),
            f"the {kind} feed has landed",
            limit_s=LIMIT_S,
            interval_s=0.005,
        )
        began = sender.began_at()
        (row,) = cluster.sql("SELECT count(*) AS n FROM landed")
        assert row["n"] == records, f"{row['n']} of {records} records landed"
    return records / (done - began)
