"""Rules of the repository that a test keeps: style, mutants, migrations, and which suites run."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from feedq.control.store import migrate, migrations
from tests.house import parsed
from tests.mutants.listed import MUTANTS

ROOT = Path(__file__).parents[2]

TESTS = sorted(ROOT.glob("tests/**/*.py"))

TEXT_SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".html", ".css", ".js", ".mako", ""}

NOT_OURS = {Path(__file__), ROOT / ".git"}

"""In a work tree of Git, ``.git`` is a file, which holds a path of the machine."""

TEXTS = sorted(
    path
    for pattern in ("feedq/**/*", "tests/**/*", "bench/**/*", "docs/**/*", "*", ".ci/*")
    for path in ROOT.glob(pattern)
    if path.is_file() and path.suffix in TEXT_SUFFIXES and path not in NOT_OURS
)


SLEEP = re.compile(r"\bsleep\(")

read = cache(Path.read_text)


def where(path: Path, line: int = 1) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def is_explained(path: Path, line: int) -> bool:
    """Whether there is a comment on this line or on the one above."""
    return any("#" in text for text in read(path).splitlines()[max(line - 2, 0) : line])


def loose_sleeps(path: Path) -> list[str]:
    """Where a test waits for a time, and not in a loop for a condition."""
    tree = parsed(path)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.While | ast.For | ast.AsyncFor)]
    in_loops = {id(inner) for loop in loops for inner in ast.walk(loop)}
    return [
        where(path, call.lineno)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in {"time.sleep", "sleep", "asyncio.sleep"}
        and id(call) not in in_loops
        and ast.unparse(call.args[0]) != "0"
        and not is_explained(path, call.lineno)
    ]


def test_tests_poll_and_do_not_sleep() -> None:
    """A sleep belongs inside a loop that looks for a condition.

    To see that *nothing* happens takes a moment too; such a sleep has a comment that says so.
    """
    assert [place for path in TESTS if SLEEP.search(read(path)) for place in loose_sleeps(path)] == []


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(?:TODO|FIXME|XXX|HACK|TBD)\b")
    assert [where(path) for path in TEXTS if marks.search(read(path))] == []


def test_no_path_of_one_machine_gets_in() -> None:
    private = re.compile(r"(?<![\w.])/(?:work|root|opt/wheels|opt/pypi[\w-]*)/[\w./-]*")
    assert [where(path) for path in TEXTS if private.search(read(path))] == []


def test_only_the_protocol_writes_to_the_control_database() -> None:
    """So roles can be given its functions, and each statement says what it promises in one place."""
    writes = re.compile(r"\b(?:INSERT INTO|DELETE FROM|UPDATE) (?:feedq\.|\{)")
    modules = [path for path in ROOT.glob("feedq/control/**/*.py") if "migrations" not in path.parts]
    assert [where(path) for path in modules if writes.search(read(path))] == []


def test_the_control_database_has_one_clock() -> None:
    """A statement that read another clock would stay behind where a test moves time."""
    other = re.compile(
        r"\b(?:clock|statement|transaction)_timestamp\b|\btimeofday\b|(?<!feedq\.)\bnow\(\)"
        r"|\b(?:current|local)_?(?:time|date)(?:stamp)?\b",
        re.IGNORECASE,
    )
    found = [
        where(path, number)
        for path in sorted(ROOT.glob("feedq/control/**/*.*"))
        if path.suffix in {".py", ".sql"}
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if other.search(line) and "CREATE FUNCTION feedq." not in line
    ]
    assert found == []


def test_the_text_of_each_mutant_stands_once_in_the_package() -> None:
    sources = [path for kind in ("py", "sql") for path in sorted(ROOT.glob(f"feedq/**/*.{kind}"))]
    package = "\0".join(path.read_text() for path in sources)
    counts = {mutant.what: package.count(mutant.text) for mutant in MUTANTS}
    assert {what: count for what, count in counts.items() if count != 1} == {}


def test_each_mutant_is_a_change_that_existing_tests_are_to_notice() -> None:
    assert len(MUTANTS) >= 60
    assert len({(mutant.text, mutant.instead) for mutant in MUTANTS}) == len(MUTANTS)
    assert [mutant.what for mutant in MUTANTS if not mutant.tests or mutant.text == mutant.instead] == []
    named = {test.partition("::")[0] for mutant in MUTANTS for test in mutant.tests}
    assert [test for test in named if not (ROOT / test).exists()] == []


def test_migrations_are_numbered_up_to_the_revision_that_workers_ask_for() -> None:
    (directory,) = migrations.__path__
    found = sorted(Path(directory).glob("versions/r*.py"))
    numbers = [f"{n:04}" for n in range(1, 1 + len(found))]
    declared = [
        re.findall(r'^(?:down_)?revision = "?(\w+)"?$', path.read_text(), re.MULTILINE) for path in found
    ]
    assert declared == [[number, before] for number, before in zip(numbers, ["None", *numbers], strict=False)]
    assert [path.name[1:5] for path in found] == numbers
    assert numbers[-1] == migrate.HEAD
