"""The pages that show how to add a connector and a sink, tried as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

TIMEOUT_S = 300
pytestmark = pytest.mark.timeout(TIMEOUT_S + 20)

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


def run(place: Path, *words: str, status: int = 0, files: Path | None = None) -> str:
    """A command of somebody who has the package installed; what it said."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=place,
        # The plugins that are installed here take longer to import than the tests of the page take.
        env={
            **os.environ,
            "PYTHONPATH": f"{place}{os.pathsep}{ROOT}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "TMPDIR": str(files or place),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == status, done.stdout[-4_000:] + done.stderr
    return done.stdout


def feedq(place: Path, *words: str) -> str:
    return run(place, "-c", "from feedq.cli import main; main()", *words)


def test_feedq_lists_the_connector_as_the_page_shows_it(installed: Path) -> None:
    said = feedq(installed, "connectors", "ticker").splitlines()
    shown = re.search(r"^```text\n(ticker:.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    lines = [" ".join(line.split()) for line in said]
    assert [line for line in map(str.split, shown.group(1).splitlines()) if line != ["…"]] == [
        line.split() for line in lines if line.startswith(("ticker:", "OPTION", "max_record_bytes "))
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
        "from pathlib import Path; from feedq.verbs import manifests;"
        "read = manifests.parse(Path('feeds.yaml').read_text(), origin='feeds.yaml');"
        "print(read.problems, [problem for d in read.feeds for problem in manifests.option_problems(d.spec)])"
    )
    assert run(installed, "-c", problems) == "[] []\n"


def test_the_conformance_suite_of_the_page_passes(installed: Path) -> None:
    said = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert re.search(r"^\d+ passed in ", said, re.MULTILINE)


SINK_PAGE = ROOT / "docs" / "howto" / "add-a-sink.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", SINK_PAGE.read_text(), re.MULTILINE | re.DOTALL)


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


def test_the_sink_of_the_page_passes_the_suite_as_the_page_runs_it(package: Path, servers_dir: Path) -> None:
    (command,) = blocks("sh")
    checkout, program, *arguments = command.split()
    assert (checkout, program) == ("PYTHONPATH=~/src/feedq", "pytest")
    # Its files are where no commit waits for a disk.
    said = run(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, files=servers_dir)
    assert int(re.findall(r"(\d+) passed", said)[0]) > 50


def test_the_sink_of_the_page_is_found_by_its_scheme(package: Path) -> None:
    asked = "from feedq.sinks.base import load_sink; print(load_sink('journal:///tmp/x').__qualname__)"
    assert run(package, "-c", asked) == "JournalSink\n"


def test_the_suite_refuses_a_sink_that_loses_or_doubles_records(package: Path) -> None:
    text, tests = (package / "journal.py").read_text(), (package / "test_journal.py").read_text()
    for module, statement, instead in (
        ("losing", "set_aside(suspect, str(unreadable))", "pass"),
        (
            "doubling",
            "self.session.execute(insert(self.table), rows)",
            "self.session.execute(insert(self.table), 2 * rows)",
        ),
    ):
        assert text.count(statement) == 1
        (package / f"{module}.py").write_text(text.replace(statement, instead))
        assert "from journal import" in tests
        (package / f"test_{module}.py").write_text(
            tests.replace("from journal import", f"from {module} import")
        )
    chosen = ("-k", "unreadable_records or land_in_order", "test_losing.py", "test_doubling.py")
    said = run(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, status=1)
    for failed in (r"test_losing\.py.*unreadable_records", r"test_doubling\.py.*land_in_order"):
        assert re.search(f"^FAILED {failed}", said, re.MULTILINE), said[-4_000:]
