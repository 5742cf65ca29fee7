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

import feedq
from feedq.cli import main as feedq_command
from feedq.cli.doing import TOKEN, TOKEN_FILE
from feedq.connectors.base import load_connector
from feedq.core.model import LeaseState, Reason, Status, TargetState, WorkerState, WorkerTarget
from feedq.core.schedule.model import RunKind, RunState, ScheduleState
from feedq.errors import FeedqError
from feedq.settings import Settings
from feedq.telemetry.logs import EventKind, LogEvent
from feedq.verbs import manifests
from feedq.verbs.manifests import option_problems
from feedq.verbs.registry import MODULES, load
from tests.house import PACKAGE, ROOT

DOCS = ROOT / "docs"

REFERENCE = DOCS / "reference"

PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("**/*.md")])

ADRS = sorted(DOCS.glob("adr/0*.md"))

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read(name: str) -> str:
    return (REFERENCE / name).read_text()


def first_column(text: str) -> set[str]:
    """What stands in backticks in the first cells of a page's tables."""
    cells = re.findall(r"^\| (`[^|]*`) +\|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def section(text: str, title: str, *, level: int = 2) -> str:
    _, found, rest = text.partition(f"\n{'#' * level} {title}\n")
    assert found, f"no section {title!r}"
    return re.split(rf"^#{{2,{level}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


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


def test_generated_tables_are_up_to_date() -> None:
    made = generator()
    assert [page for page in sorted(made.PAGES) if read(page) != made.render(page)] == [], "run `make docs`"


def test_every_connector_has_a_section_with_every_option() -> None:
    page = read("connectors.md")
    missing = []
    for kind in generator().kinds():
        own = section(page, f"`{kind}`")
        assert f"<!-- options of {kind}: begin -->" in own
        (shared,) = re.findall(r"^Shared options: (.*)\.$", own, re.MULTILINE)
        documented = first_column(own)
        for title in re.findall(r"\[([\w ]+)\]", shared):
            documented |= first_column(section(page, title.capitalize(), level=3))
        missing += [
            f"{kind}: {name}" for name in load_connector(kind).Options.model_fields.keys() - documented
        ]
    assert missing == []


def test_every_setting_is_documented() -> None:
    documented = {name.partition("__")[0] for name in first_column(read("settings.md"))}
    assert documented == {f"FEEDQ_{name.upper()}" for name in Settings.model_fields}


def test_settings_that_pages_name_exist() -> None:
    known = {f"FEEDQ_{name.upper()}" for name in Settings.model_fields} | {TOKEN, TOKEN_FILE, "FEEDQ_SERVER"}
    unknown = {
        f"{relative(page)}: {name}"
        for page in [*PAGES, ROOT / "docker-compose.yml", ROOT / "Dockerfile"]
        for name in re.findall(r"(?<!_)FEEDQ_[A-Z][A-Z_]*[A-Z]", page.read_text())
        if name.partition("__")[0] not in known
    }
    assert unknown == set()


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


def test_every_state_and_reason_is_explained() -> None:
    enums = (
        LeaseState,
        Reason,
        Status,
        TargetState,
        WorkerState,
        WorkerTarget,
        RunKind,
        RunState,
        ScheduleState,
    )
    named = set(re.findall(r"`(\w+)`", read("control-tables.md")))
    assert {value.value for values in enums for value in values} <= named


def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in LINK.findall(prose(page)):
            if "://" in target:
                continue
            file, _, anchor = target.partition("#")
            path = (page.parent / file).resolve() if file else page
            if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
                broken.append(f"{relative(page)}: {target}")
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


def commands_in(page: Path) -> list[str]:
    fenced = "\n".join(re.findall(r"^```[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
    lines = re.findall(r"^(?:\w+: )?(feedq [a-z].*?)(?:  +#.*)?$", fenced, re.MULTILINE)
    return [*lines, *re.findall(r"`(feedq [a-z][^`]*)`", page.read_text())]


def is_accepted(line: str) -> bool:
    """Whether the command of a line exists and has its options."""
    found: Command = feedq_command
    for word in line.split()[1:]:
        if not isinstance(found, Group) or not re.fullmatch(r"[a-z][a-z-]+", word):
            verb = next((p.type for p in found.params if p.name == "verb"), None)
            if isinstance(verb, click.Choice) and word not in verb.choices:
                return False
            break
        inner = found.get_command(click.Context(found), word)
        if inner is None:
            return False
        found = inner
    options = {o for p in found.get_params(click.Context(found)) for o in [*p.opts, *p.secondary_opts]}
    return options.issuperset(re.findall(r"(?<=\s)--?[a-z][a-z-]*", line))


def test_commands_that_pages_name_exist() -> None:
    named = {(relative(page), line) for page in PAGES for line in commands_in(page)}
    assert len(named) > 100
    assert sorted(place for place in named if not is_accepted(place[1])) == []


def test_make_targets_that_pages_name_exist() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    pattern = re.compile(r"(?:^|`)make ([a-z]+)\b(?=`|\s*$|\s+#)", re.MULTILINE)
    named = {(relative(page), target) for page in PAGES for target in pattern.findall(page.read_text())}
    assert {place for place in named if place[1] not in phony.group(1).split()} == set()


def test_every_decision_is_listed() -> None:
    listed = re.findall(r"\((0\d+[\w-]+\.md)\)", (DOCS / "adr" / "README.md").read_text())
    assert sorted(listed) == [page.name for page in ADRS]


def test_tests_that_pages_name_exist() -> None:
    defined = {
        name
        for path in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("feedq/testing/*.py")]
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    named = {
        (relative(page), name) for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())
    }
    assert {place for place in named if place[1] not in defined} == set()


def test_files_that_pages_name_exist() -> None:
    rooms = [path.name for path in PACKAGE.iterdir() if path.is_dir()]
    pattern = re.compile(rf"`((?:feedq|tests|docs|bench|{'|'.join(rooms)})/[\w./-]*)`")
    named = {(relative(page), name) for page in PAGES for name in pattern.findall(page.read_text())}
    found = (ROOT, PACKAGE)
    assert {one for one in named if not any((place / one[1]).exists() for place in found)} == set()


def test_manifests_that_pages_show_are_valid() -> None:
    shown = {
        (relative(page), text)
        for page in PAGES
        for text in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        if "feeds:" in text or "schedules:" in text
    }
    wrong = []
    for page, text in sorted(shown):
        read = manifests.parse(text, origin=page)
        wrong += [(page, str(problem)) for problem in read.problems]
        wrong += [(page, problem) for d in read.feeds for problem in option_problems(d.spec)]
    assert wrong == []


def test_no_module_with_verbs_is_left_out() -> None:
    verbs = PACKAGE / "verbs"
    written = {
        ".".join(path.relative_to(verbs).with_suffix("").parts)
        for path in verbs.rglob("*.py")
        if "\n@verb(" in path.read_text()
    }
    assert written == set(MODULES)


def test_each_address_is_documented() -> None:
    written = (ROOT / "docs/reference/api.md").read_text()
    looking, _, changes = written.partition("## Changes")
    for verb in load().values():
        table = changes if verb.changes else looking
        assert re.search(f"^\\| .*`{re.escape(verb.path)}`.* \\|$", table, re.MULTILINE), verb.path


# -- the page of troubles ----------------------------------------------------------------------------

PAGE = ROOT / "docs" / "howto" / "troubleshoot.md"
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in re.findall(r"^\| (?!you see|---).*$", PAGE.read_text(), re.MULTILINE)
]
QUESTIONS = [
    ("permission denied sequence", "GRANT"),
    ("duplicates restart", "`key`"),
    ("rows twice replaced", "`key`"),
    ("column NULL", "`feedq feed test NAME`"),
    ("another client id MQTT", "its own"),
    ("HTTP poll first page only", "pointers"),
    ("Redis stream deleted", "beginning"),
    ("table locked", "`pg_locks`"),
    ("last line file", "End the line"),
    ("new worker idle", "`feedq worker list`"),
    ("drain hangs", "`feedq status`"),
    ("too many connections", "Count them"),
    ("crash loop", "`/healthz`"),
    ("out of memory", "memory"),
    ("task twice Redis", "`FEEDQ_VISIBILITY_TIMEOUT_S`"),
    ("job ran twice", "semantics"),
    ("daylight saving", "`zone`"),
    ("missed_catchup", "`catch_up`"),
    ("env feedq env", "eval"),
    ("leading zeros", "`text`"),
    ("schema drift", "`drift: add`"),
    ("401 credentials", "secrets"),
    ("no alert", "--alerts"),
    ("waiting no_capacity", "`-c`"),
    ("streaming no data", "tap"),
    ("Flower task succeeded", "status"),
    ("deploy move twice", "`FEEDQ_RESTART_HOLD_S`"),
    ("removed declared again start", "Adopt"),
    ("certificate", "`source.ca_file`"),
    ("skipped_overlap", "`overlap`"),
    ("pgbouncer session locks", "session mode"),
    ("redis eviction", "`noeviction`"),
]
"""Words of a symptom, taken from faults that users met, and a word of what helps."""


def test_every_row_says_what_is_seen_its_cause_and_what_to_do() -> None:
    assert len(ROWS) > 40
    assert [row for row in ROWS if len(row) != 3 or not all(row)] == []


@pytest.mark.parametrize(("words", "remedy"), QUESTIONS)
def test_a_symptom_finds_its_row(words: str, remedy: str) -> None:
    found = [row for row in ROWS if all(word.lower() in row[0].lower() for word in words.split())]
    assert [row for row in found if remedy in row[2]], found
    assert len(found) <= 2
