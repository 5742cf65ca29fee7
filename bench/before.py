"""``--before COMMIT``: benchmarks of another commit and of this one in turn, and the ratio of each figure.

The other commit is checked out into a directory of its own and runs with this one's packages. What a machine does
in a second varies from minute to minute, so the rounds go back and forth: before, now, now, before. A ratio is of
the medians.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.report import Figure, say

ROOT: Final = Path(__file__).parents[1]
ROW: Final = re.compile(
    r"^(?P<case>.+?) +\| (?P<must>(?:median )?[<>=]+ .+?) +\| (?:median )?(?P<value>[0-9.e+-]+)"
)
"""A line of the table that `bench.report.write_table` prints. Of a median and a last, the median counts."""


def compare(directory: Path, commit: str, which: Sequence[str], *, rounds: int) -> Iterator[Figure]:
    """``which`` are names of benchmarks; none means all. Each commit is measured ``rounds`` times, the other one
    in a checkout below the directory."""
    with checked_out(directory, commit) as other:
        yield from _compare(other, which, rounds)


@contextmanager
def checked_out(directory: Path, commit: str) -> Iterator[Path]:
    """The files of a commit, below the directory, for the length of the block."""
    tree = directory / "before"
    _git("worktree", "add", "--force", "--detach", str(tree), commit)
    try:
        yield tree
    finally:
        _git("worktree", "remove", "--force", str(tree))


def _compare(other: Path, which: Sequence[str], rounds: int) -> Iterator[Figure]:
    before: dict[str, list[float]] = defaultdict(list)
    now: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        turns = ((other, before), (ROOT, now))
        for tree, values in turns if number % 2 == 0 else reversed(turns):
            say(f"round {number + 1}: {'now' if tree == ROOT else 'before'}")
            for case, value in _measured(tree, which):
                values[case].append(value)
    for case in dict.fromkeys([*before, *now]):
        yield _ratio(case, before[case], now[case], rounds)


def _ratio(case: str, before: Sequence[float], now: Sequence[float], rounds: int) -> Figure:
    if len(before) < rounds or len(now) < rounds:
        found = f"measured {len(now)} times now, {len(before)} times before; see above"
        return Figure(case, f"{rounds} figures of each commit", found, ok=False)
    below = statistics.median(before)
    ratio = f"{statistics.median(now) / below:.3f}" if below else "-"
    return Figure(case, "-", f"now ÷ before {ratio} (now {_list(now)}; before {_list(before)})", ok=None)


def _measured(tree: Path, which: Sequence[str]) -> list[tuple[str, float]]:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, "-m", "bench", *which],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    rows = [match for match in map(ROW.match, done.stdout.splitlines()) if match]
    if not rows:
        raise RuntimeError(f"python -m bench {' '.join(which)} in {tree} printed no figures:\n{done.stdout}")
    return [(row["case"], float(row["value"])) for row in rows]


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def is_commit(name: str) -> bool:
    found = ["git", "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}"]
    return subprocess.run(found, cwd=ROOT, check=False, stdout=subprocess.DEVNULL).returncode == 0


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
