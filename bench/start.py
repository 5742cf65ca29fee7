"""The command: how much processor time it takes until it answers, and how much of that scripts and completion pay.

Each is asked several times, and the least counts: what is more is the machine's. The fleet that `status` tells of
has a few thousand feeds and no worker.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.report import Figure, at_most
from bench.servers import started
from feedq.embedded.postgres import Postgres
from feedq.model import FeedSpec
from feedq.store import migrate
from feedq.store.postgresql import PostgresStore

ROUNDS = 7
FEEDS = 3_000
LIMIT_S = 60.0
COMMAND = (sys.executable, "-c", "from feedq.cli import main; main(prog_name='feedq')")
VERSION_MUST_S = 0.12
COMPLETION_MUST_S = 0.15
STATUS_MUST_S = 0.4


def measure(directory: Path) -> Iterator[Figure]:
    yield at_most("start: feedq --version", VERSION_MUST_S, processor_s(["--version"]), "s")
    yield at_most("start: feedq --help", COMPLETION_MUST_S, processor_s(["--help"]), "s")
    for line in ("feedq feed ", "feedq feed list --"):
        asked = {"_FEEDQ_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        yield at_most(f"start: completion of {line!r}", COMPLETION_MUST_S, processor_s([], asked), "s")
    with started(Postgres(directory)) as postgres:
        url = postgres.create_database("start")
        migrate.upgrade(url)
        store = PostgresStore(url)
        for number in range(FEEDS):
            name, source = f"tenant-{number % 30}/feed-{number}", {"url": "tcp://127.0.0.1:7001"}
            store.feeds.add(FeedSpec(name, "tcp", source, {"table": "t"}))
        store.close()
        used = processor_s(["status"], {"FEEDQ_DATABASE_URL": url})
        yield at_most(f"start: feedq status, {FEEDS:,} feeds", STATUS_MUST_S, used, "s")


def processor_s(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    """The least processor time, user and system, that the command took."""
    return min(_once(arguments, environment or {}) for _ in range(ROUNDS))


def _once(arguments: Sequence[str], environment: Mapping[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        timeout=LIMIT_S,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
