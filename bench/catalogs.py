"""A catalog of 50,000 feeds: how long `feedq sync` takes for all of them, and when none or one has changed.

The command is a process of its own, as an operator or a schedule starts it, on a real PostgreSQL without workers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.report import Figure, at_most, say
from bench.servers import started
from feedq.control.store import migrate
from feedq.local.postgres import Postgres

FEEDS = 50_000
FILES = 50
LEFT = FEEDS // 10
"""Feeds that the catalog has when it has lost nine in ten."""
FIRST_MUST_S = 60.0
AGAIN_MUST_S = 6.0
LIMIT_S = 300.0
COMMAND = (sys.executable, "-c", "from feedq.cli import main; main(prog_name='feedq')")


def measure(directory: Path) -> Iterator[Figure]:
    folder = directory / "catalog"
    folder.mkdir()
    with started(Postgres(directory)) as postgres:
        url = postgres.create_database("catalog")
        migrate.upgrade(url)
        environment = {
            "FEEDQ_DATABASE_URL": url,
            "FEEDQ_CATALOGS__CRM__KIND": "directory",
            "FEEDQ_CATALOGS__CRM__PATH": str(folder),
        }

        def sync(*arguments: str) -> tuple[float, subprocess.CompletedProcess[str]]:
            return _timed([*COMMAND, "sync", "crm", *arguments], environment)

        write(folder, FEEDS)
        yield _promised("first sync", FIRST_MUST_S, sync, f"{FEEDS:,} added")
        yield _promised("sync without a change", AGAIN_MUST_S, sync, f"= {FEEDS:,} unchanged")
        write(folder, FEEDS + 1)
        yield _promised("sync with one more", None, sync, "1 added")
        write(folder, LEFT)
        took_s, done = sync()
        words = f"feedq sync crm --remove-up-to {FEEDS + 1 - LEFT}"
        is_refused = done.returncode == 1 and words in done.stderr
        said = f"{'refused' if is_refused else 'NOT refused'} in {took_s:.3g} s"
        yield Figure("catalog: sync of one that lost 90 %", "refused", said, is_refused)


def write(folder: Path, feeds: int) -> None:
    """Write a catalog of so many feeds, in files of a thousand or so."""
    for number in range(FILES):
        listed = [
            {
                "name": f"tenant-{n % 300}/feed-{n}",
                "tenant": f"tenant-{n % 300}",
                "connector": "tcp",
                "source": {"url": f"tcp://source-{n % 50}.example.com:7001", "cursor": "/seq"},
                "sink": {
                    "table": "orders",
                    "columns": {"seq": "/seq", "at": "/ts", "payload": ""},
                    "key": ["seq"],
                },
                "labels": {"region": "eu"},
            }
            for n in range(number, feeds, FILES)
        ]
        (folder / f"{number}.json").write_text(json.dumps({"feeds": listed}))


def _timed(command: list[str], environment: dict[str, str]) -> tuple[float, subprocess.CompletedProcess[str]]:
    began = time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return time.monotonic() - began, done


def _promised(
    what: str,
    must_s: float | None,
    sync: Callable[[], tuple[float, subprocess.CompletedProcess[str]]],
    expected: str,
) -> Figure:
    took_s, done = sync()
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout, done.stdout[-500:]
    say(f"catalog of {FEEDS:,} feeds, {what}: {took_s:.3g} s")
    case = f"catalog of {FEEDS:,} feeds: {what}"
    return (
        Figure(case, "-", f"{took_s:.3g} s", None) if must_s is None else at_most(case, must_s, took_s, "s")
    )
