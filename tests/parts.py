"""``python -m tests.parts``: all tests, in two pytest processes beside each other.

The tests of whole clusters, in `tests/acceptance` and in `tests/chaos`, wait most of their time, for failures to
be noticed; the others compute meanwhile. A third part beside them makes two cores too slow for tests that kill
processes. A line of output begins with the part that printed it. Options go to both; where tests are named, one
process runs them.
"""

from __future__ import annotations

import subprocess
import sys
import time
import tomllib
from pathlib import Path
from threading import Lock, Thread

ROOT = Path(__file__).parent.parent
PYTEST = (sys.executable, "-m", "pytest", "--durations=15")
CLUSTERS = ("tests/acceptance", "tests/chaos")
NOTHING_RAN = 5
"""pytest's status when the arguments leave a part without tests."""


class Part:
    """One pytest process and its output."""

    def __init__(self, name: str, paths: list[str], arguments: list[str], printing: Lock) -> None:
        self.name = name
        self._printing = printing
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [*PYTEST, *paths, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._thread = Thread(target=self._relay, name=name, daemon=True)
        self._thread.start()

    def _relay(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._printing:
                print(f"{self.name:<8} | {line}", end="", flush=True)

    def wait(self) -> int:
        status = self._process.wait()
        self._thread.join()
        print(f"{self.name}: exit status {status} after {time.monotonic() - self._began:.0f} s", flush=True)
        return status


def main() -> int:
    if any((ROOT / argument.split("::")[0]).exists() for argument in sys.argv[1:]):
        return subprocess.call([*PYTEST, *sys.argv[1:]], cwd=ROOT)
    paths = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
    tests = {"rest": [path for path in paths if path not in CLUSTERS], "clusters": list(CLUSTERS)}
    printing = Lock()
    parts = [Part(name, named, sys.argv[1:], printing) for name, named in tests.items()]
    while True:
        try:
            statuses = [part.wait() for part in parts]
        except KeyboardInterrupt:
            continue  # Ctrl-C has reached both: they clean up and end
        return next((status for status in statuses if status not in (0, NOTHING_RAN)), 0)


if __name__ == "__main__":
    sys.exit(main())
