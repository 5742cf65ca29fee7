"""The documentation as a site: it builds without a warning, asks nobody for anything, and finds names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from feedq.errors import FeedqError
from feedq.settings import Settings
from feedq.telemetry.logs import EventKind, LogEvent
from tests.house import ROOT


class Site:
    """What `make site` builds."""

    def __init__(self, place: Path) -> None:
        self.place = place

        index: dict[str, Any] = json.loads((place / "search" / "search_index.json").read_text())
        self._separator = re.compile(index["config"]["separator"])
        self._sections = [
            (section["location"].partition("#")[0], f" {' '.join(self.words(section['text']))}")
            for section in index["docs"]
        ]

    def words(self, text: str) -> list[str]:
        return [word for word in self._separator.split(text.lower()) if word]

    def found(self, name: str) -> set[str]:
        """The pages that a search for a name leads to: those with words that begin like each word of it."""
        words = self.words(name)
        return {page for page, text in self._sections if all(f" {word}" in text for word in words)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", place],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Site(place)


def test_no_page_loads_anything_from_elsewhere(site: Site) -> None:
    loads = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>")
    pages = list(site.place.rglob("*.html"))
    assert len(pages) > 40
    assert {found for page in pages for found in loads.findall(page.read_text())} == set()


def test_every_diagram_is_a_picture(site: Site) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        drawn = (site.place / page.relative_to(ROOT / "docs").with_suffix(".html")).with_name(
            "index.html" if page.name == "README.md" else f"{page.stem}.html"
        )
        assert drawn.read_text().count('<svg id="merman"') == page.read_text().count("```mermaid")


def test_a_search_finds_every_setting_error_and_event(site: Site) -> None:
    names = {f"FEEDQ_{name.upper()}": "settings" for name in Settings.model_fields}
    names |= {error.__name__: "errors" for error in FeedqError.__subclasses__()}
    names |= {kind.value: "events" for kind in EventKind}
    missing = {name for name, page in names.items() if f"reference/{page}.html" not in site.found(name)}
    assert missing == set()
    assert {name for name in names if site.words(name) != [name.lower()]} == set(), "parts find too much"


def test_a_search_finds_a_line_of_the_log(site: Site) -> None:
    assert "reference/events.html" in site.found(LogEvent.WORKER_DECLARED_GONE.value)
