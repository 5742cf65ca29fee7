"""The how-to for connectors works as it is written: its package is made, installed, listed and tested."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "add-a-connector.md"
FILE = re.compile(r"^`acme-feeds/([\w./-]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the page, and beside it what installing it leaves: its metadata with the entry points."""
    place = tmp_path_factory.mktemp("acme-feeds")
    for name, text in FILE.findall(PAGE.read_text()):
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
    metadata = place / "acme_feeds-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(groups) + "\n")
    return place


def run(place: Path, *words: str) -> str:
    """A command of somebody who has the package installed; what it said."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=place,
        # The plugins that are installed here take longer to import than the tests of the page take.
        env={**os.environ, "PYTHONPATH": str(place), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def feedq(place: Path, *words: str) -> str:
    return run(place, "-c", "from feedq.cli import main; main()", *words)


def test_the_page_has_all_files_of_a_package() -> None:
    assert [name for name, _ in FILE.findall(PAGE.read_text())] == [
        "pyproject.toml",
        "acme_feeds/ticker.py",
        "acme_feeds/blocking_ticker.py",
        "tests/test_ticker.py",
    ]


def test_feedq_lists_the_connector_as_the_page_shows_it(installed: Path) -> None:
    said = feedq(installed, "connectors", "ticker").splitlines()
    shown = re.search(r"^```text\n(ticker:.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    lines = [" ".join(line.split()) for line in said]
    assert [line for line in map(str.split, shown.group(1).splitlines()) if line != ["…"]] == [
        line.split() for line in lines if line.startswith(("ticker:", "OPTION", "host ", "port "))
    ]
    assert "blocking-ticker" in feedq(installed, "connectors")


def test_the_feed_that_the_page_shows_is_valid(installed: Path) -> None:
    shown = re.search(r"^```yaml\n(connector: .*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    manifest = installed / "feeds.yaml"
    manifest.write_text(
        yaml.safe_dump({"feeds": [{"name": "acme/quotes", **yaml.safe_load(shown.group(1))}]})
    )
    problems = (
        "from pathlib import Path; from feedq.verbs.manifest import options, reader;"
        "read = reader.parse(Path('feeds.yaml').read_text(), origin='feeds.yaml');"
        "print(read.problems, [problem for d in read.feeds for problem in options.option_problems(d.spec)])"
    )
    assert run(installed, "-c", problems) == "() []\n"


def test_the_conformance_suite_of_the_page_passes(installed: Path) -> None:
    said = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert re.search(r"^\d+ passed in ", said, re.MULTILINE)
