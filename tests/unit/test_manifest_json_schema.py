"""The JSON Schema of manifests: it accepts what `feedq apply` accepts, and refuses what an editor can see."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator

from feedq.core.schedule.spec import ScheduleSpec
from feedq.verbs import documents
from feedq.verbs.manifest.json_schema import manifest_schema
from feedq.verbs.manifest.reader import ENTRIES
from tests.unit.command import Command
from tests.unit.test_manifest_schedules import FULL, specs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
SCHEMA = Draft202012Validator(manifest_schema())
FEED = "name: a, connector: tcp, source: {url: 'tcp://h:1'}, sink: {table: t}"


def complaints(text: str) -> list[str]:
    """What an editor would underline."""
    found = []
    for document in documents.read(text, lists=tuple(ENTRIES)):
        lists = {key: [item.value for item in items] for key, items in document.lists.items()}
        found += [error.message for error in SCHEMA.iter_errors({key: {} for key in document.keys} | lists)]
    return found


def manifests() -> Iterator[tuple[str, str]]:
    """All that stand in examples and the documentation."""
    for path in ROOT.glob("examples/**/*.yaml"):
        yield path.name, path.read_text()
    for page in PAGES:
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            if re.search(r"^(feeds|schedules|queues):", block, re.MULTILINE):
                yield page.name, block


def test_it_is_a_schema_and_the_command_prints_it() -> None:
    Draft202012Validator.check_schema(manifest_schema())
    printed = json.loads(Command().ok("schema"))
    assert printed == json.loads(json.dumps(manifest_schema()))


def test_an_editor_shows_what_each_key_is_for() -> None:
    defs = manifest_schema()["$defs"]
    for name in (*ENTRIES, "sink", "tcp", "feeds.Selector"):
        assert [key for key, of in defs[name]["properties"].items() if not of.get("description")] == [], name


def test_every_manifest_of_examples_and_documentation_is_accepted() -> None:
    found = list(manifests())
    assert len(found) > 20
    assert [(name, complaints(text)) for name, text in found if complaints(text)] == []
    assert complaints(FULL) == []


@given(specs)
def test_whatever_is_exported_is_accepted(spec: ScheduleSpec) -> None:
    assert complaints(documents.dump({"schedules": [spec.plain()]})) == []


@pytest.mark.parametrize(
    "text",
    [
        "feed: []",
        "feeds: [a]",
        "feeds: [{name: a, connector: tcp}]",
        f"feeds: [{{{FEED}, colour: red}}]",
        f"feeds: [{{{FEED}, weight: heavy}}]",
        f"feeds: [{{{FEED}, target_state: on}}]",
        f"feeds: [{{{FEED}, selector: {{region: eu}}}}]",
        f"feeds: [{{{FEED.replace('tcp,', 'tpc,')}}}]",
        f"feeds: [{{{FEED.replace('url', 'uri')}}}]",
        f"feeds: [{{{FEED.replace('table', 'tabel')}}}]",
        "feeds: [{name: a b, connector: tcp, source: {url: 'tcp://h:1'}, sink: {table: t}}]",
        "schedules: [{name: a, task: t}]",
        "schedules: [{name: a, task: t, every: soon}]",
        "schedules: [{name: a, task: t, every: 1m, cron: '@daily'}]",
        "schedules: [{name: a, task: t, every: 1m, overlap: never}]",
        "schedules: [{name: a, task: t, every: 1m, retries: {often: 3}}]",
        "schedules: [{name: a, task: t, every: 1m, keep: 0}]",
        "queues: [{name: a}]",
        "schedules: [{name: a, task: t, every: 1m, exclude: [1]}]",
    ],
)
def test_what_is_broken_is_refused(text: str) -> None:
    assert complaints(text)
