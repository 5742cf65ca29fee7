"""The first sections of the tutorial, as written: from an empty directory to an own feed in an own table."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from tests.acceptance.test_up import START_S, STOP_S, directory, plain_env
from tests.cluster import ROOT, wait_until

pytestmark = pytest.mark.timeout(300)

LAST_SECTION = "## 2. Land a file in a table"
COMMANDS_MAX = 8
TOGETHER_MAX_S = 300.0
WRITTEN = [("1", "book", "12.50"), ("2", "pen", "1.20"), ("3", "map", "7.00")]


def commands() -> list[str]:
    """What the sections say to type once feedq is installed, one command each; a here-document is one."""
    before, last, after = (ROOT / "docs" / "tutorial.md").read_text().partition(LAST_SECTION)
    assert last
    blocks = re.findall(r"```sh\n(.*?)```", before + after.partition("\n## ")[0], re.DOTALL)
    found: list[str] = []
    for line in "".join(blocks).splitlines():
        is_within = bool(found) and "<<" in found[-1] and not found[-1].endswith("\nEND")
        found = [*found[:-1], f"{found[-1]}\n{line}"] if is_within else [*found, line]
    return [command for command in found if not command.startswith("pip install ")]


class Terminals:
    """Two terminals in one directory: what ends with ``&`` goes on in the first of them."""

    def __init__(self, where: Path) -> None:
        self.where = where
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {**plain_env(), "PATH": path}
        self.goes_on: subprocess.Popen[bytes] | None = None

    def type(self, command: str) -> str:
        if command.startswith("feedq up"):
            with (self.where / "up.out").open("wb") as log:
                self.goes_on = subprocess.Popen(
                    ["bash", "-c", f"exec {command}"],
                    cwd=self.where,
                    env=self.env,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            wait_until(self._is_up, limit_s=START_S, what=self._said)
            return ""
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=self.where,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def _said(self) -> str:
        return (self.where / "up.out").read_text()

    def _is_up(self) -> bool:
        return "everything is up" in self._said()

    def close(self) -> None:
        if self.goes_on is not None:
            self.goes_on.send_signal(signal.SIGINT)
            self.goes_on.wait(STOP_S)

    def database_url(self) -> str:
        return str(json.loads(self.type("feedq env --json"))["FEEDQ_DATABASE_URL"])


@pytest.fixture
def terminals() -> Iterator[Terminals]:
    with directory() as where:
        made = Terminals(where)
        yield made
        made.close()


def test_from_an_empty_directory_to_an_own_table(terminals: Terminals) -> None:
    typed = commands()
    assert 3 < len(typed) <= COMMANDS_MAX
    assert not [one for one in typed if re.search(r"psql|SELECT|CREATE|python", one)], "no SQL, and no code"
    assert shutil.which("feedq", path=terminals.env["PATH"])
    began = time.monotonic()
    said = [terminals.type(command) for command in typed]
    with closing(psycopg2.connect(terminals.database_url())) as database, database.cursor() as cursor:

        def rows() -> list[tuple[str, ...]]:
            cursor.execute("SELECT id::text, article, price::text FROM orders ORDER BY id")
            found = cursor.fetchall()
            database.commit()
            return found

        wait_until(lambda: rows() == WRITTEN, limit_s=30, what=lambda: f"{rows()}")
    assert time.monotonic() - began < TOGETHER_MAX_S
    assert re.search(r"shop/orders +streaming", said[-1])
