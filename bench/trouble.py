"""Feeds in trouble at their sink, one at a time: how long their neighbours on the same worker are silent.

Ten neighbours of ten records a second land through the same writer. Each landed row notes when, so the longest
silence is that between two rows of one neighbour, or after its last. Without any trouble it is about the interval
of the group commits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from bench.report import Figure, at_most, say
from bench.servers import running
from tests.trouble import CASES, NEIGHBOURS, RATE, Case, Troubled, troubled

SILENT_MAX_S = 1.0
WATCHED_S = 10.0
QUIET_S = 5.0


def measure(directory: Path) -> Iterator[Figure]:
    with (
        running(directory) as (postgres, valkey),
        troubled(
            directory, database_url=postgres.create_database("trouble"), broker_url=valkey.url()
        ) as stage,
    ):
        began = stage.now()
        time.sleep(QUIET_S)
        yield _silence("no trouble", stage.longest_silence_s(began))
        for case in CASES:
            say(f"trouble: {case.name}")
            yield _silence(case.name, _watch(stage, case))
        yield Figure(
            "neighbours of feeds in trouble",
            "every record once",
            f"{len(stage.wrong_neighbours())} feeds with lost or doubled ones",
            not stage.wrong_neighbours(),
        )


def _watch(stage: Troubled, case: Case) -> float:
    began = stage.now()
    stage.add(case)
    if not case.dead:
        stage.wait_landed(case)
    with stage.meddling(case):
        # It must have seen something of what it is about.
        stage.wait_shown(case)
        time.sleep(WATCHED_S)
        longest_s = stage.longest_silence_s(began)
    stage.drop(case)
    return longest_s


def _silence(case: str, longest_s: float) -> Figure:
    beside = f"{case}: the longest silence of {NEIGHBOURS} neighbours at {RATE:g} records/s"
    return at_most(beside, SILENT_MAX_S, longest_s, "s")
