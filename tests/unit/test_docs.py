"""The documentation names everything there is, and nothing that is not."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import click
import pytest
from click import Command, Group
from sqlalchemy import Table

import feedq
from feedq import manifest
from feedq.cli import main as feedq_command
from feedq.connectors.base import load_connector
from feedq.declaration import problems
from feedq.errors import FeedqError
from feedq.model import LeaseState, Reason, Status, TargetState, WorkerState, WorkerTarget
from feedq.schedule.model import RunKind, RunState, ScheduleState
from feedq.settings import Settings
from feedq.store.tables import metadata
from feedq.telemetry import EventKind, LogEvent

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("**/*.md")])
ADRS = sorted(DOCS.glob("adr/0*.md"))
TERMS = (
    "feed",
    "worker",
    "lease",
    "epoch",
    "assignment",
    "checkpoint",
    "cursor",
    "batch",
    "connector",
    "sink",
    "source",
    "record",
    "claim",
    "release",
    "fence",
    "heartbeat",
    "reconcile",
    "placement",
    "sweep",
    "beat",
    "watchdog",
    "drain",
    "cordon",
    "move",
    "promise",
    "reap",
    "hold",
    "rebalance",
    "selector",
    "weight",
    "settle",
    "generation",
    "ttl",
    "broker",
    "queue",
    "stalled",
    "backoff",
    "tenant",
    "schedule",
    "tick",
    "run",
    "run key",
    "attempt",
    "watermark",
    "misfire",
    "catch-up",
    "overlap policy",
    "start deadline",
    "jitter",
    "semantics",
    "job slot",
    "job queue",
    "segment",
    "trigger",
    "backfill",
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read(name: str) -> str:
    return (REFERENCE / name).read_text()


def first_column(text: str) -> set[str]:
    """What stands in backticks in the first cells of a page's tables."""
    cells = re.findall(r"^\| (`[^|]*`) +\|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def section(text: str, title: str) -> str:
    _, found, rest = text.partition(f"\n## {title}\n")
    assert found, f"no section {title!r}"
    return rest.partition("\n## ")[0]


def prose(path: Path) -> str:
    """A page without its fenced code."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The anchors that headings get, by GitHub's rule."""
    titles = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain}


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", REFERENCE / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted(generator().PAGES))
def test_generated_tables_are_up_to_date(page: str) -> None:
    assert read(page) == generator().render(page), "run `make docs`"


@pytest.mark.parametrize("kind", generator().kinds())
def test_every_connector_has_a_section_with_every_option(kind: str) -> None:
    page = read("connectors.md")
    own = section(page, f"`{kind}`")
    assert f"<!-- options of {kind}: begin -->" in own
    everywhere = section(page, "Options of every connector") + section(page, "Options of connections")
    assert set(load_connector(kind).Options.model_fields) <= first_column(own) | first_column(everywhere)


@pytest.mark.parametrize("kind", generator().kinds())
def test_every_option_is_described_in_sentences(kind: str) -> None:
    fields = load_connector(kind).Options.model_fields
    assert [name for name, field in fields.items() if not (field.description or "").endswith(".")] == []


def test_every_setting_is_documented() -> None:
    documented = {name.partition("__")[0] for name in first_column(read("settings.md"))}
    assert documented == {f"FEEDQ_{name.upper()}" for name in Settings.model_fields}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docker-compose.yml", ROOT / "Dockerfile"], ids=relative)
def test_settings_that_pages_name_exist(page: Path) -> None:
    named = set(re.findall(r"(?<!_)FEEDQ_[A-Z][A-Z_]*[A-Z]", page.read_text()))
    known = {f"FEEDQ_{name.upper()}" for name in Settings.model_fields}
    assert {name for name in named if name.partition("__")[0] not in known} == set()


def test_every_history_event_is_documented() -> None:
    assert first_column(section(read("events.md"), "History")) == {kind.value for kind in EventKind}


def test_every_log_event_is_documented() -> None:
    assert first_column(section(read("events.md"), "Log events")) == {event.value for event in LogEvent}


def test_every_metric_is_documented() -> None:
    # The table is generated; this is about what people look for.
    named = set(re.findall(r"feedq_[a-z_]+", (DOCS / "howto" / "monitor.md").read_text()))
    known = {name for name in first_column(read("metrics.md")) if name.startswith("feedq_")}
    assert {name.removesuffix("_bucket") for name in named} - known <= {"feedq_dead_letter"}


def test_every_error_class_is_documented() -> None:
    for module in pkgutil.walk_packages(feedq.__path__, "feedq."):
        if ".migrations" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    classes, queue = {FeedqError.__name__}, [FeedqError]
    while queue:
        subclasses = queue.pop().__subclasses__()
        classes |= {c.__name__ for c in subclasses if c.__module__.startswith("feedq.")}
        queue += subclasses
    assert first_column(read("errors.md")) == classes


@pytest.mark.parametrize("table", metadata.sorted_tables, ids=lambda table: table.name)
def test_every_control_column_is_documented(table: Table) -> None:
    documented = first_column(section(read("control-tables.md"), table.name))
    assert {column.name for column in table.columns} <= documented


@pytest.mark.parametrize(
    "values",
    [
        *(LeaseState, Reason, Status, TargetState, WorkerState, WorkerTarget),
        *(RunKind, RunState, ScheduleState),
    ],
)
def test_every_state_and_reason_is_explained(values: type[Reason]) -> None:
    named = set(re.findall(r"`(\w+)`", read("control-tables.md")))
    assert {value.value for value in values} <= named


@pytest.mark.parametrize("term", TERMS)
def test_the_glossary_explains(term: str) -> None:
    assert re.search(rf"\*\*{term}\*\*", read("glossary.md"))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(prose(page)):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def test_every_page_is_reachable_from_the_index() -> None:
    reached, queue = set(), [DOCS / "index.md"]
    while queue:
        page = queue.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = [t.partition("#")[0] for t in LINK.findall(prose(page)) if "://" not in t]
        queue += [(page.parent / t).resolve() for t in targets if t]
    assert {p for p in PAGES if p.is_relative_to(DOCS)} - reached == set()


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_commands_that_pages_name_exist(page: Path) -> None:
    fenced = "\n".join(re.findall(r"^```[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
    lines = re.findall(r"^(?:\w+: )?(feedq [a-z].*?)(?:  +#.*)?$", fenced, re.MULTILINE)
    inline = re.findall(r"`(feedq [a-z][^`]*)`", page.read_text())
    wrong = []
    for line in [*lines, *inline]:
        found: Command = feedq_command
        for word in line.split()[1:]:
            if not isinstance(found, Group) or not re.fullmatch(r"[a-z][a-z-]+", word):
                break
            inner = found.get_command(click.Context(found), word)
            if inner is None:
                wrong.append(line)
                break
            found = inner
        options = {o for p in found.params for o in [*p.opts, *p.secondary_opts]} | {"--json", "--help"}
        wrong += [line for o in re.findall(r"(?<=\s)--?[a-z][a-z-]*", line) if o not in options]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_make_targets_that_pages_name_exist(page: Path) -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    named = re.findall(r"(?:^|`)make ([a-z]+)\b(?=`|\s*$|\s+#)", page.read_text(), re.MULTILINE)
    assert set(named) <= set(phony.group(1).split())


@pytest.mark.parametrize("page", ADRS, ids=relative)
def test_a_decision_says_why_and_what_was_rejected(page: Path) -> None:
    titles = re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)
    assert titles == ["Context", "Decision", "Consequences", "Rejected"]


def test_every_decision_is_listed() -> None:
    listed = re.findall(r"\((0\d+[\w-]+\.md)\)", (DOCS / "adr" / "README.md").read_text())
    assert sorted(listed) == [page.name for page in ADRS]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_tests_that_pages_name_exist(page: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", page.read_text()))
    defined = {
        name
        for path in [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("feedq/testing/*.py")]
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert named <= defined


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_files_that_pages_name_exist(page: Path) -> None:
    named = re.findall(r"`((?:feedq|tests|docs|bench)/[\w./-]*)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_manifests_that_pages_show_are_valid(page: Path) -> None:
    shown = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    for text in shown:
        if "feeds:" in text or "schedules:" in text:
            read = manifest.parse(text, origin=relative(page))
            assert read.problems == ()
            assert [problem for d in read.declarations for problem in problems(d.spec)] == []
            assert [problem for d in read.schedules for problem in manifest.schedule_problems(d.spec)] == []
