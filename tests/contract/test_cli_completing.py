"""Shells complete names out of the control database, and hear nothing of trouble."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.contract.harness import PostgresHarness
from tests.schedules import schedule_spec

pytestmark = pytest.mark.servers

SCRIPT = "from feedq.cli import main; main(prog_name='feedq')"


def completed(line: str, url: str) -> tuple[list[str], str]:
    """What bash is offered for the last word of a line, and what else is said."""
    environment = {
        "_FEEDQ_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
        "FEEDQ_DATABASE_URL": url,
    }
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return [one.partition(",")[2] for one in ran.stdout.split()], ran.stderr


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("feedq feed pause ", ["acme/a", "acme/b", "beta/c"]),
        ("feedq feed pause acme/", ["acme/a", "acme/b"]),
        ("feedq feed pause acme/a b", ["beta/c"]),
        ("feedq feed cursor show b", ["beta/c"]),
        ("feedq feed list --tenant ", ["acme", "beta"]),
        ("feedq feed list --worker w", ["w@host"]),
        ("feedq feed move --to ", ["w@host"]),
        ("feedq events --feed acme/", ["acme/a", "acme/b"]),
        ("feedq worker drain ", ["w@host"]),
        ("feedq schedule trigger n", ["nightly"]),
        ("feedq feed set acme/a w", []),
        ("feedq feed pause %", []),
    ],
)
def test_names_are_completed(postgres_harness: PostgresHarness, line: str, names: list[str]) -> None:
    for name in ("acme/a", "acme/b", "beta/c"):
        postgres_harness.feed(name, tenant=name[:4])
    postgres_harness.worker("w@host")
    schedules = postgres_harness.store.jobs.schedules
    if not schedules.declared():
        schedules.add(schedule_spec())
    assert completed(line, postgres_harness.url) == (names, "")


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/nothing", "no address at all"])
def test_without_a_database_nothing_is_said(url: str) -> None:
    assert completed("feedq feed pause ", url) == ([], "")
    assert completed("feedq feed pause --ye", url) == (["--yes"], "")
