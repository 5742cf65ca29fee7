"""The style of the code, as far as a machine can judge it beyond what ruff and mypy do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = sorted([*ROOT.glob("feedq/**/*.py"), ROOT / "beat_schedule.py"])
TESTS = sorted(ROOT.glob("tests/**/*.py"))
BENCH = sorted(ROOT.glob("bench/**/*.py"))
CODE = [*PRODUCT, *TESTS, *BENCH]
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".html", ".css", ".js", ".mako", ""}
TEXTS = sorted(
    path
    for pattern in ("feedq/**/*", "tests/**/*", "bench/**/*", "docs/**/*", "*", ".ci/*")
    for path in ROOT.glob(pattern)
    if path.is_file() and path.suffix in TEXT_SUFFIXES and path != Path(__file__)
)
MODULE_LINES_MAX = 700
SUITE_LINES_MAX = 700
"""A suite of tests is a list that is read in parts."""
FUNCTION_LINES_MAX = 60
"""Forty is the aim; past this a function has two jobs."""
VAGUE_MODULES = {
    "util",
    "utils",
    "helper",
    "helpers",
    "common",
    "manager",
    "managers",
    "misc",
    "stuff",
    "tools",
}
VAGUE_NAMES = {"cfg", "mgr", "conn", "tmp", "foo", "util", "helper"}


@cache
def parsed(path: Path) -> tuple[ast.Module, Sequence[ast.AST]]:
    """A module and all of its nodes."""
    tree = ast.parse(path.read_text(), str(path))
    return tree, tuple(ast.walk(tree))


def where(path: Path, node: ast.AST | None = None) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def nodes(paths: Sequence[Path], *kinds: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for path in paths:
        for node in parsed(path)[1]:
            if isinstance(node, kinds):
                yield path, node


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring and decorators."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    prose = function.body[0]
    return lines - ((prose.end_lineno or prose.lineno) - prose.lineno + 1)


def test_modules_are_short_enough_to_be_read() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in CODE}
    limits = {path: SUITE_LINES_MAX if path in TESTS else MODULE_LINES_MAX for path in CODE}
    assert {where(path): size for path, size in sizes.items() if size > limits[path]} == {}


def test_functions_have_one_job() -> None:
    # A migration is one long list of what it creates.
    long = [
        f"{where(path, f)} {f.name}: {code_lines(f)} lines"
        for path, f in nodes(PRODUCT, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)
        and code_lines(f) > FUNCTION_LINES_MAX
        and "migrations" not in path.parts
    ]
    assert long == []


def test_modules_are_nouns_and_not_drawers() -> None:
    assert [p for p in CODE if {*p.relative_to(ROOT).with_suffix("").parts} & VAGUE_MODULES] == []


def test_modules_and_public_classes_say_what_they_are() -> None:
    silent = [where(path) for path in CODE if parsed(path)[0].body and not ast.get_docstring(parsed(path)[0])]
    silent += [
        f"{where(path, node)} {node.name}"
        for path, node in nodes(PRODUCT, ast.ClassDef)
        if isinstance(node, ast.ClassDef)
        and node in parsed(path)[0].body
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_names_are_words() -> None:
    arguments = [(path, n, n.arg) for path, n in nodes(CODE, ast.arg) if isinstance(n, ast.arg)]
    variables = [
        (path, n, n.id)
        for path, n in nodes(CODE, ast.Name)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]
    vague = [f"{where(path, n)} {name}" for path, n, name in [*arguments, *variables] if name in VAGUE_NAMES]
    assert vague == []


def test_nothing_waits_with_asyncio_wait_for() -> None:
    # On Python 3.11 it can swallow a cancellation; asyncio.timeout does not.
    names = [(path, n) for path, n in nodes(PRODUCT, ast.Attribute) if ast.unparse(n) == "asyncio.wait_for"]
    assert [where(path, n) for path, n in names] == []


def test_no_error_is_swallowed() -> None:
    swallowed = [
        where(path, node)
        for path, node in nodes(PRODUCT, ast.ExceptHandler)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"})
        and all(isinstance(s, ast.Pass | ast.Continue) for s in node.body)
    ]
    assert swallowed == []


def test_tests_run_always() -> None:
    ways_out = {
        "pytest.skip",
        "pytest.xfail",
        "pytest.importorskip",
        "pytest.mark.skip",
        "pytest.mark.skipif",
    }
    ways_out.add("pytest.mark.xfail")
    used = [where(path, n) for path, n in nodes(TESTS, ast.Attribute) if ast.unparse(n) in ways_out]
    assert used == []


def test_tests_do_not_mock() -> None:
    imports = [(path, n, ast.unparse(n)) for path, n in nodes(TESTS, ast.Import, ast.ImportFrom)]
    assert [where(path, n) for path, n, line in imports if re.search(r"\bmock\b", line)] == []


def is_explained(path: Path, node: ast.AST) -> bool:
    """Whether there is a comment on the line of a node or on the one above."""
    lines = path.read_text().splitlines()
    line = getattr(node, "lineno", 1)
    return any("#" in text for text in lines[max(line - 2, 0) : line])


def test_tests_poll_and_do_not_sleep() -> None:
    """A sleep belongs inside a loop that looks for a condition.

    To see that *nothing* happens takes a moment too; such a sleep has a comment that says so.
    """
    in_loops = {
        id(inner) for _, loop in nodes(TESTS, ast.While, ast.For, ast.AsyncFor) for inner in ast.walk(loop)
    }
    loose = [
        where(path, call)
        for path, call in nodes(TESTS, ast.Call)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in {"time.sleep", "sleep", "asyncio.sleep"}
        and id(call) not in in_loops
        and ast.unparse(call.args[0]) != "0"
        and not is_explained(path, call)
    ]
    assert loose == []


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(?:TODO|FIXME|XXX|HACK|TBD)\b")
    assert [where(path) for path in TEXTS if marks.search(path.read_text())] == []


def test_no_path_of_one_machine_gets_in() -> None:
    private = re.compile(r"(?<![\w.])/(?:work|root|opt/wheels|opt/pypi[\w-]*)/[\w./-]*")
    assert [where(path) for path in TEXTS if private.search(path.read_text())] == []
