"""New feeds, and ``kill -9`` of a worker, while the broker hangs: Valkey and RabbitMQ, ten times in a row each.

Hanging is a broker that is there and does not answer, in three kinds: see `tests.faults.broker_in_trouble`. It
begins before the first round and ends after the last; the worker that was killed starts anew in between.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from bench.report import Figure, say
from bench.servers import running
from feedq.local.postgres import Postgres
from tests import faults
from tests.cluster import Cluster
from tests.peers.rabbitmq import RabbitMq
from tests.peers.servers import missing_packages
from tests.proxy import PlainProxy

ROUNDS = 10
PLACED_S = 1.0
FAILED_OVER_S = 0.5
RABBITMQ = "rabbitmq-server"


class Broker(Protocol):
    """What is needed of one."""

    @property
    def pid(self) -> int: ...


def measure(directory: Path, *, rounds: int = ROUNDS) -> Iterator[Figure]:
    with running(directory) as (postgres, valkey):
        for kind in faults.BROKER_TROUBLES:
            yield from _rounds(directory, postgres, "Valkey", valkey, valkey.url(), kind, rounds)
        if RABBITMQ in missing_packages():
            yield Figure("RabbitMQ hangs", "the same", f"left out: apt-get install {RABBITMQ}", None)
            return
        (directory / "rabbitmq").mkdir()
        with RabbitMq(directory / "rabbitmq") as rabbitmq:
            for kind in faults.BROKER_TROUBLES:
                yield from _rounds(directory, postgres, "RabbitMQ", rabbitmq, rabbitmq.url, kind, rounds)


def _rounds(
    directory: Path, postgres: Postgres, name: str, broker: Broker, url: str, kind: str, rounds: int
) -> Iterator[Figure]:
    place = directory / f"{name}-{kind}"
    place.mkdir()
    database = f"broker_{name}_{kind}".lower()
    placed_s, failed_over_s = list[float](), list[float]()
    with ExitStack() as stack:
        proxy = stack.enter_context(PlainProxy(url))
        cluster = Cluster(place, database_url=postgres.create_database(database), broker_url=proxy.url)
        stage = stack.enter_context(faults.few_feeds(cluster, postgres=postgres))
        with faults.broker_in_trouble(kind, broker.pid, proxy):
            for number in range(rounds):
                stage.heal()
                placed_s.append(faults.place_feed(stage, f"new/{number}"))
                took, untouched = faults.kill_worker(stage)
                failed_over_s.append(took.last_s)
                stage.check(untouched=untouched)
                say(
                    f"{name} {kind}, round {number + 1}: placed after {placed_s[-1]:.3f} s, kill -9 of {took}"
                )
    postgres.drop_database(database)
    yield _worst(f"{name} {kind}: a new feed streams", placed_s, PLACED_S)
    yield _worst(f"{name} {kind}: kill -9, its last feed streams elsewhere", failed_over_s, FAILED_OVER_S)


def _worst(case: str, seconds: Sequence[float], must_s: float) -> Figure:
    return Figure(
        case,
        f"<= {must_s:g} s",
        f"worst {max(seconds):.3f} s, median {statistics.median(seconds):.3f} s ({len(seconds)} in a row)",
        max(seconds) <= must_s,
    )
