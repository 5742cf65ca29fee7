"""``python -m tests.simulation [--seed N | --seeds N] [--seconds S]``: run seeds on all cores, or replay one."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import structlog

from tests.simulation.trouble import FAULTS_S, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one alone, and print what happened")
    parser.add_argument("--seeds", type=int, default=2_000, help="how many to run (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=FAULTS_S, help="of faults, simulated, each")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    if options.seed is not None:
        return replay(options.seed, options.seconds)
    return run(range(options.first, options.first + options.seeds), options.seconds)


def replay(seed: int, seconds: float) -> int:
    try:
        fleet = run_seed(seed, faults_s=seconds)
        print(fleet.transcript)
    except AssertionError as error:
        print(error)
        return 1
    return 0


def run(seeds: range, seconds: float) -> int:
    began = time.monotonic()
    failed: dict[int, str] = {}
    with ProcessPoolExecutor(os.cpu_count(), initializer=quiet) as pool:
        results = pool.map(partial(problem, seconds=seconds), seeds, chunksize=10)
        for done, (seed, found) in enumerate(zip(seeds, results, strict=True), start=1):
            if found is not None:
                failed[seed] = found
                print(f"seed {seed}: {found}", flush=True)
            if sys.stderr.isatty():
                print(f"\r{done} of {len(seeds)}, {len(failed)} failed", end="", file=sys.stderr, flush=True)
    print(f"{len(seeds)} seeds in {time.monotonic() - began:.0f} s, {len(failed)} failed")
    if failed:
        print(f"replay with: make simulate SEED={min(failed)}")
    return bool(failed)


def quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))


def problem(seed: int, *, seconds: float) -> str | None:
    """What was broken, in a line."""
    try:
        run_seed(seed, faults_s=seconds)
    except AssertionError as error:
        return str(error).split("\n", 1)[0]
    except Exception as error:
        return repr(error)
    return None


if __name__ == "__main__":
    sys.exit(main())
