"""The command: the processor time that it takes until it answers, and how long an operator of 3,000 feeds waits.

What is asked often is asked several times here, and the least counts: what is more is the machine's. The feeds are
those of thirty tenants, on two workers that are only rows.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench.api import FEEDS as MANY
from bench.api import with_many
from bench.report import Figure, at_most
from bench.servers import started
from feedq import __version__
from feedq.control.reconcile import make_passes
from feedq.control.store import migrate
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import Assignment, NewWorker
from feedq.local.postgres import Postgres
from feedq.settings import Settings

ROUNDS = 7
FEEDS = 3_000
LIMIT_S = 60.0
PYTHON = (sys.executable, "-c")
COMMAND = (*PYTHON, "from feedq.cli import main; main(prog_name='feedq')")
WORKER_IMPORTS = (*PYTHON, "import feedq.celery.application")
WORKER_IMPORTS_MUST_S = 1.3
VERSION_MUST_S = 0.12
COMPLETION_MUST_S = 0.15
STATUS_MUST_S = 0.4
OPERATION_MUST_S = 5.0
MANY_MUST_S = 1.0
DOCTOR_MUST_S = 3.0
TENANTS = 30
OPERATIONS = (
    ("move all 3,000 feeds", "feed", "move", "--match", "*", "--yes"),
    ("pause a tenant", "feed", "pause", "--tenant", "tenant-1", "--yes"),
    (
        *("change an option of a tenant", "feed", "set", "--tenant", "tenant-2"),
        *("source.idle_timeout_s=30", "--yes"),
    ),
    ("what happened in five minutes", "events", "--since", "5m"),
    ("dead letters of a feed", "feed", "dead-letters", "list", "tenant-1/feed-1"),
    ("the largest feed", "feed", "list", "--sort", "bytes", "--limit", "1"),
    *(
        (f"{action} all 3,000 feeds", "feed", action, "--match", "*", "--yes")
        for action in ("restart", "pause", "resume")
    ),
    (
        *("change an option of all 3,000 feeds", "feed", "set", "--match", "*"),
        *("source.idle_timeout_s=31", "--yes"),
    ),
)
"""What an operator does, and the command for it."""


def measure(directory: Path) -> Iterator[Figure]:
    used = min(_used_s(WORKER_IMPORTS, {}) for _ in range(ROUNDS))
    yield at_most("start: what a worker imports", WORKER_IMPORTS_MUST_S, used, "s")
    yield at_most("start: feedq --version", VERSION_MUST_S, processor_s(["--version"]), "s")
    yield at_most("start: feedq --help", COMPLETION_MUST_S, processor_s(["--help"]), "s")
    for line in ("feedq feed ", "feedq feed list --"):
        used = processor_s([], completing(line))
        yield at_most(f"start: completion of {line!r}", COMPLETION_MUST_S, used, "s")
    with started(Postgres(directory)) as postgres:
        url = postgres.create_database("start")
        migrate.upgrade(url)
        environment = {"FEEDQ_DATABASE_URL": url}
        manifest = directory / "feeds.json"
        manifest.write_text(json.dumps({"feeds": [_declared(number) for number in range(FEEDS)]}))
        yield _waited("apply of 3,000 new feeds", environment, "apply", "-f", str(manifest))
        with closing(PostgresStore(url)) as store:
            _place_all(store)
        used = processor_s(["status"], environment)
        yield at_most(f"start: feedq status, {FEEDS:,} feeds", STATUS_MUST_S, used, "s")
        for line in ("feedq feed pause tenant-1", "feedq feed list --tenant t"):
            asked = environment | completing(line)
            yield at_most(f"start: completion of {line!r}", COMPLETION_MUST_S, processor_s([], asked), "s")
        for case, *arguments in OPERATIONS:
            yield _waited(case, environment, *arguments)
        yield from _with_many(postgres)


def _with_many(postgres: Postgres) -> Iterator[Figure]:
    url = with_many(postgres, "start_many")
    environment = {"FEEDQ_DATABASE_URL": url}
    # The doctor finds that nobody streams them, which is as it should be here.
    for command, must_s, ends in (("status", MANY_MUST_S, 0), ("doctor", DOCTOR_MUST_S, 1)):
        waited = min(_waited_s(environment, command, ends=ends) for _ in range(ROUNDS))
        yield at_most(f"start: feedq {command}, {MANY:,} feeds, until it answers", must_s, waited, "s")
    asked = environment | completing("feedq feed pause tenant7")
    used = processor_s([], asked)
    yield at_most(f"start: completion of a name, {MANY:,} feeds", COMPLETION_MUST_S, used, "s")


def completing(line: str) -> dict[str, str]:
    """What bash sets when the last word of this line is to be completed."""
    return {"_FEEDQ_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}


def _declared(number: int) -> dict[str, Any]:
    tenant = f"tenant-{number % TENANTS}"
    source = {"url": "tcp://127.0.0.1:7001", "cursor": "/seq"}
    sink = {"table": "t", "columns": {"seq": "/seq"}, "key": ["seq"]}
    name = f"{tenant}/feed-{number}"
    return {"name": name, "tenant": tenant, "connector": "tcp", "source": source, "sink": sink}


def _place_all(store: PostgresStore) -> None:
    """Two workers that claim whatever they are given."""
    for name in ("one", "two"):
        new = NewWorker(uuid4(), name, f"node.{name}", FEEDS, "host", 1, __version__)
        store.workers.register(new, ttl_s=3_600)
    settings = Settings(settle_s=0.0)
    given: list[Assignment] = []
    while (
        make_passes(store.fleet, given.extend, settings, passes=1, placing_only=True) and len(given) < FEEDS
    ):
        pass
    for worker_id in {assignment.worker_id for assignment in given}:
        store.leases.claim(worker_id, [one.key for one in given if one.worker_id == worker_id])


def _waited(case: str, environment: Mapping[str, str], *arguments: str) -> Figure:
    return at_most(f"operator: {case}", OPERATION_MUST_S, _waited_s(environment, *arguments), "s")


def _waited_s(environment: Mapping[str, str], *arguments: str, ends: int = 0) -> float:
    began = time.perf_counter()
    _used_s([*COMMAND, *arguments], environment, ends=ends)
    return time.perf_counter() - began


def processor_s(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    """The least processor time, user and system, that the command took."""
    return min(_used_s([*COMMAND, *arguments], environment or {}) for _ in range(ROUNDS))


def _used_s(argv: Sequence[str], environment: Mapping[str, str], *, ends: int = 0) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        argv,
        # Where the variable is set, a module that was edited would be compiled anew by each start.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **environment},
        stdout=subprocess.DEVNULL,
        timeout=LIMIT_S,
    )
    assert done.returncode == ends, f"{argv[-1]} ended with {done.returncode}"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
