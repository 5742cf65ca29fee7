"""``python -m tests.mutants [WORD …]``: does the suite notice when the code is broken?

For each mutant of the list whose text has the words in it (all, without one), a copy of the tree gets that one
change, and the tests named must fail there, which pass without it. Prints which were caught, and ends with 1 when
one survives.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.listed import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
TREE = ("feedq", "tests", "examples", "docs", "beat_schedule.py", "pyproject.toml", "Makefile", "README.md")
"""What tests read."""
# Without the plugins that no named test uses: to import them takes a quarter of the time of a short test.
PLUGINS = ("cacheprovider", "celery", "docker_tools", "schemathesis")
PYTEST = (
    *(sys.executable, "-m", "pytest", "-q", "-x", "-o", "timeout=60"),
    *(word for name in PLUGINS for word in ("-p", f"no:{name}")),
)
PASSED, FAILED = 0, 1
"""What pytest ends with; anything else says that it could not run the tests."""
RAW = argparse.RawDescriptionHelpFormatter
HUNG_S = 240.0
"""A mutant may loop without end where no time-out of a test reaches: noticed is noticed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant."""

    mutant: Mutant
    file: str
    said: str
    took_s: float

    @property
    def is_caught(self) -> bool:
        return self.said == "caught"


class TreeCopy:
    """A copy of the tree, in which one mutant lives at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()
        for name in TREE:
            source, target = ROOT / name, directory / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        self._stamp = time.time()

    def verdict(self, mutant: Mutant, trouble: str) -> Verdict:
        """``trouble`` is what its tests have without it."""
        began = time.monotonic()
        path = found_in(mutant.text, self._directory / "feedq")
        if trouble:
            return Verdict(mutant, str(path.relative_to(self._directory)), trouble, 0.0)
        text = path.read_text()
        self._write(path, text.replace(mutant.text, mutant.instead))
        try:
            status, output = self.run(mutant.tests)
        finally:
            self._write(path, text)
        said = {PASSED: "SURVIVED", FAILED: "caught"}.get(status, f"not run: {output[-2_000:]}")
        return Verdict(mutant, str(path.relative_to(self._directory)), said, time.monotonic() - began)

    def run(self, tests: tuple[str, ...]) -> tuple[int, str]:
        """pytest's status and output. Processes that tests start import the copy, too."""
        # What is compiled once serves all that follow.
        environment = os.environ | {"PYTHONPATH": str(self._directory), "PYTHONDONTWRITEBYTECODE": ""}
        try:
            done = subprocess.run(
                [*PYTEST, *tests],
                cwd=self._directory,
                env=environment,
                capture_output=True,
                text=True,
                timeout=HUNG_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return FAILED, ""
        return done.returncode, done.stdout + done.stderr

    def _write(self, path: Path, text: str) -> None:
        """With a time of its own: to Python a file of the same size and second is the one that it has compiled."""
        path.write_text(text)
        self._stamp += 2
        os.utime(path, (self._stamp, self._stamp))


def found_in(text: str, package: Path) -> Path:
    """The one file of code, Python or SQL, that has this text, once."""
    files = sorted(path for path in package.rglob("*") if path.suffix in (".py", ".sql"))
    holders = [path for path in files for _ in range(path.read_text().count(text))]
    if len(holders) != 1:
        names = ", ".join(str(path.relative_to(package.parent)) for path in holders)
        raise ValueError(f"stands {len(holders)} times in the package, not once: {text!r} {names}")
    return holders[0]


def judge(mutants: Sequence[Mutant], *, copies: int) -> list[Verdict]:
    """Try each, in several copies of the tree beside each other."""
    with tempfile.TemporaryDirectory(prefix="feedq-mutants-") as directory:
        # The servers of tests run under an account of their own, which has to get in.
        Path(directory).chmod(0o755)
        trees: SimpleQueue[TreeCopy] = SimpleQueue()
        for number in range(copies):
            trees.put(TreeCopy(Path(directory) / str(number)))

        def trouble(tests: tuple[str, ...]) -> str:
            """What is wrong with tests that fail twice without any mutant."""
            for _ in range(2):
                with lent(trees) as tree:
                    status, output = tree.run(tests)
                if status == PASSED:
                    return ""
            return f"fail without it, too: {output[-2_000:]}"

        def judge_one(mutant: Mutant) -> Verdict:
            with lent(trees) as tree:
                found = tree.verdict(mutant, troubles[mutant.tests])
            print(f"{found.took_s:6.1f} s  {found.said[:8]:<9} {found.file}: {mutant.what}", flush=True)
            return found

        with ThreadPoolExecutor(copies) as threads:
            named = list(dict.fromkeys(mutant.tests for mutant in mutants))
            troubles = dict(zip(named, threads.map(trouble, named), strict=True))
            return list(threads.map(judge_one, mutants))


@contextmanager
def lent(trees: SimpleQueue[TreeCopy]) -> Iterator[TreeCopy]:
    tree = trees.get()
    try:
        yield tree
    finally:
        trees.put(tree)


def main() -> int:
    parser = argparse.ArgumentParser("tests.mutants", description=__doc__, formatter_class=RAW)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only mutants whose text has each of them")
    words: list[str] = parser.parse_args().words
    chosen = [m for m in MUTANTS if all(word in f"{m.what} {m.text}" for word in words)]
    if not chosen:
        parser.error(f"none of {len(MUTANTS)} mutants has {' and '.join(words)} in its text")
    verdicts = judge(chosen, copies=max(1, os.cpu_count() or 1))
    others = [v for v in verdicts if not v.is_caught]
    print(f"\n{len(verdicts) - len(others)} of {len(verdicts)} mutants caught")
    for verdict in others:
        print(f"{verdict.said}: {verdict.file}: {verdict.mutant.what} ({', '.join(verdict.mutant.tests)})")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
