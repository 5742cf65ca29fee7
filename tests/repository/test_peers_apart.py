"""Tests against servers of other projects run where those are installed, and nowhere else."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.peers.servers import PACKAGES, program

ROOT = Path(__file__).parents[2]


def test_all_suites_run_by_default_but_the_one_that_needs_other_servers() -> None:
    configured = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"][
        "testpaths"
    ]
    suites = {f"tests/{path.parent.name}" for path in ROOT.glob("tests/*/test_*.py")}
    assert set(configured) == suites - {"tests/peers"}
    assert "tests/peers" in suites


def test_a_program_that_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, "no-such-server", "no-such-package")
    with pytest.raises(
        AssertionError, match=r"^needs the program no-such-server: apt-get install no-such-package$"
    ):
        program("no-such-server")
