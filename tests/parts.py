"""``python -m tests.parts``: all tests, in five pytest processes beside each other.

The tests of whole clusters, in `tests/acceptance` and in `tests/chaos`, wait most of their time, for failures to
be noticed; the others compute meanwhile. Where there are too few processors for all, those that kill processes
come first and those that compute last: a part is as nice as it can bear to wait. A line of output begins with the
part that printed it. Options go to all; where tests are named, one process runs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from threading import Lock, Thread

ROOT = Path(__file__).parent.parent
PYTEST = (sys.executable, "-m", "pytest", "--durations=15")
PARTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "chaos": (0, ("tests/chaos",)),
    "a-o": (
        5,
        (
            "tests/acceptance/test_[a-o]*.py",
            "tests/contract/test_a*.py",
            "tests/scenarios",
            "tests/simulation",
        ),
    ),
    "p-z": (5, ("tests/acceptance/test_[p-z]*.py", "tests/contract/test_h*.py")),
    "i-z": (10, ("tests/contract/test_[i-z]*.py",)),
    "rest": (10, ("tests/contract/test_[b-g]*.py",)),
}
"""Of each part, how far it stands back for the others, and where its tests are; those that none has are the last
one's, too. What takes longest is several parts, by the first letter of a file; so that they end together, those of
whole clusters have some others to do behind them."""
NEEDED = {"celery": "a-o", "docker_tools": "a-o", "schemathesis": "a-o"}
"""Plugins that one part needs: to import them takes each of the others seconds."""
NOTHING_RAN = 5
"""pytest's status when the arguments leave a part without tests."""


class Part:
    """One pytest process and its output."""

    def __init__(
        self, name: str, paths: Sequence[str], arguments: Sequence[str], *, nice: int, printing: Lock
    ) -> None:
        self.name = name
        self.failed: list[str] = []
        """The lines of pytest's summary that name a test."""
        self._printing = printing
        without = [word for plugin, part in NEEDED.items() if part != name for word in ("-p", f"no:{plugin}")]
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [*PYTEST, *without, *paths, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        # Before it has started any other: those inherit it.
        os.setpriority(os.PRIO_PROCESS, self._process.pid, nice)
        self._thread = Thread(target=self._relay, name=name, daemon=True)
        self._thread.start()

    def _relay(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._printing:
                print(f"{self.name:<8} | {line}", end="", flush=True)
            if line.startswith(("FAILED ", "ERROR ")):
                self.failed.append(line)

    def wait(self) -> int:
        status = self._process.wait()
        self._thread.join()
        print(f"{self.name}: exit status {status} after {time.monotonic() - self._began:.0f} s", flush=True)
        return status


def _found(patterns: Sequence[str]) -> list[str]:
    return [str(path) for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def main() -> int:
    if any((ROOT / argument.split("::")[0]).exists() for argument in sys.argv[1:]):
        return subprocess.call([*PYTEST, *sys.argv[1:]], cwd=ROOT)
    paths = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
    named = [pattern for _, patterns in PARTS.values() for pattern in patterns]
    left = [path for path in paths if not any(pattern.startswith(path) for pattern in named)]
    printing = Lock()
    parts = [
        Part(
            name,
            [*(left if name == "rest" else ()), *_found(patterns)],
            sys.argv[1:],
            nice=nice,
            printing=printing,
        )
        for name, (nice, patterns) in PARTS.items()
    ]
    while True:
        try:
            statuses = [part.wait() for part in parts]
        except KeyboardInterrupt:
            continue  # Ctrl-C has reached all of them: they clean up and end
        # Once more at the end, which is all that is kept of some logs.
        print("".join(line for part in parts for line in part.failed), end="", flush=True)
        return next((status for status in statuses if status not in (0, NOTHING_RAN)), 0)


if __name__ == "__main__":
    sys.exit(main())
