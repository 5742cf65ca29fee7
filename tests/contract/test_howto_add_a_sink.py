"""`docs/howto/add-a-sink.md`, followed to the letter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs" / "howto" / "add-a-sink.md"
TIMEOUT_S = 300
pytestmark = pytest.mark.timeout(TIMEOUT_S + 20)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A directory with what the page says to write, installed as far as Python can tell."""
    sink, tests = blocks("python")
    (tmp_path / "journal.py").write_text(sink)
    (tmp_path / "test_journal.py").write_text(tests)
    (entry_point,) = blocks("toml")
    group, line = entry_point.strip().splitlines()
    name, _, target = line.partition(" = ")
    installed = tmp_path / "journal-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: journal\nVersion: 1\n")
    kind = group.removeprefix('[project.entry-points."').removesuffix('"]')
    (installed / "entry_points.txt").write_text(f"[{kind}]\n{name} = {target.strip(chr(34))}\n")
    return tmp_path


def run(package: Path, *arguments: str, files: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=package,
        # The plugins that are installed here take longer to import than the tests of the page take.
        env={
            **os.environ,
            "PYTHONPATH": f"{package}{os.pathsep}{CHECKOUT}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "TMPDIR": str(files or package),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_the_sink_of_the_page_passes_the_suite_as_the_page_runs_it(package: Path, servers_dir: Path) -> None:
    (command,) = blocks("sh")
    checkout, program, *arguments = command.split()
    assert (checkout, program) == ("PYTHONPATH=~/src/feedq", "pytest")
    # Its files are where no commit waits for a disk.
    ran = run(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, files=servers_dir)
    assert ran.returncode == 0, ran.stdout[-4_000:]
    assert int(re.findall(r"(\d+) passed", ran.stdout)[0]) > 50


def test_the_sink_of_the_page_is_found_by_its_scheme(package: Path) -> None:
    asked = "from feedq.sinks.base import load_sink; print(load_sink('journal:///tmp/x').__qualname__)"
    assert run(package, "-c", asked).stdout == "JournalSink\n"


def test_the_suite_refuses_a_sink_that_lets_anybody_write(package: Path) -> None:
    text, tests = (package / "journal.py").read_text(), (package / "test_journal.py").read_text()
    for module, condition in (
        ("stale", "epoch > write.epoch"),
        ("behind", "left_at != str(write.continues)"),
    ):
        assert text.count(condition) == 1
        (package / f"{module}.py").write_text(text.replace(condition, "False"))
        assert "from journal import" in tests
        (package / f"test_{module}.py").write_text(
            tests.replace("from journal import", f"from {module} import")
        )
    chosen = ("-k", "stale_epoch or continues_another", "test_stale.py", "test_behind.py")
    ran = run(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen)
    for failed in (r"test_stale\.py.*stale_epoch", r"test_behind\.py.*continues_another"):
        assert re.search(f"^FAILED {failed}", ran.stdout, re.MULTILINE), ran.stdout[-4_000:]
