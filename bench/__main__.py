"""``python -m bench [landing] [sources] [many] …``: measure all of it, or what is named; then one table."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench import (
    alerts,
    api,
    backfill,
    broker,
    catalogs,
    control,
    elsewhere,
    ends,
    faults,
    fleet,
    history,
    hostile,
    idle,
    isolation,
    jobs,
    landing,
    many,
    moves,
    pages,
    placement,
    releases,
    scale,
    slow,
    sources,
    stall,
    start,
    trouble,
)
from bench.before import compare, is_commit
from bench.report import Figure, say, write_table

BENCHMARKS: dict[str, Callable[[Path], Iterator[Figure]]] = {
    "landing": landing.measure,
    "sources": sources.measure,
    "fleet": fleet.measure,
    "many": many.measure,
    "scale": scale.measure,
    "stall": stall.measure,
    "trouble": trouble.measure,
    "faults": faults.measure,
    "elsewhere": elsewhere.measure,
    "isolation": isolation.measure,
    "broker": broker.measure,
    "alerts": alerts.measure,
    "hostile": hostile.measure,
    "backfill": backfill.measure,
    "moves": moves.measure,
    "idle": idle.measure,
    "placement": placement.measure,
    "control": control.measure,
    "api": api.measure,
    "pages": pages.measure,
    "history": history.measure,
    "start": start.measure,
    "catalogs": catalogs.measure,
    "jobs": jobs.measure,
    "ends": ends.measure,
    "releases": releases.measure,
    "slow": slow.measure,
}
AGAINST = {"releases": releases.measure, "slow": slow.measure}
"""They run another commit beside this one by themselves."""
BY_HAND = {"ends", "pages", *AGAINST}
"""Measured only when they are named."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("which", nargs="*", metavar="|".join(BENCHMARKS), help="all, unless named")
    parser.add_argument("--keep", action="store_true", help="keep the directory with logs and data")
    parser.add_argument(
        "--before", metavar="COMMIT", help="measure that commit as well, in turn with this one"
    )
    parser.add_argument(
        "--rounds", type=int, default=2, help="of --before: how often each commit is measured"
    )
    options = parser.parse_args()
    unknown = sorted(set(options.which) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")

    if options.before and not is_commit(options.before):
        parser.error(f"--before: no commit {options.before} in this repository")
    benchmarks = dict(BENCHMARKS)
    if options.before and options.which and AGAINST.keys() >= set(options.which):
        benchmarks |= {name: partial(AGAINST[name], commit=options.before) for name in AGAINST}
    elif options.before:
        if options.keep:
            parser.error("--keep and --before do not go together")
        with tempfile.TemporaryDirectory(prefix="feedq-bench-before-") as scratch:
            compared = compare(Path(scratch), options.before, options.which, rounds=options.rounds)
            return 0 if write_table(compared) else 1
    figures: list[Figure] = []
    for name in options.which or [name for name in BENCHMARKS if name not in BY_HAND]:
        directory = Path(tempfile.mkdtemp(prefix=f"feedq-bench-{name}-"))
        directory.chmod(0o711)  # the servers' account must be able to enter it
        try:
            for figure in benchmarks[name](directory):
                figures.append(figure)
        except Exception:  # noqa: BLE001 -- it is shown and counted as a failure
            # What was measured before is worth showing, and so are the other benchmarks.
            traceback.print_exc()
            figures.append(Figure(name, "to run to its end", "broke off, see above", ok=False))
        finally:
            if options.keep:
                say(f"{name}: logs and data are in {directory}")
            else:
                shutil.rmtree(directory, ignore_errors=True)
    print(f"\n{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}\n")
    return 0 if write_table(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
