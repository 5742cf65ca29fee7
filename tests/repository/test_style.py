"""The style of the code, as far as a machine can judge it beyond what ruff and mypy do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from tests.house import parsed

ROOT = Path(__file__).parents[2]
PRODUCT = sorted([*ROOT.glob("feedq/**/*.py"), ROOT / "beat_schedule.py"])
TESTS = sorted(ROOT.glob("tests/**/*.py"))
BENCH = sorted(ROOT.glob("bench/**/*.py"))
CODE = [*PRODUCT, *TESTS, *BENCH]
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".html", ".css", ".js", ".mako", ""}
NOT_OURS = {Path(__file__), ROOT / ".git"}
"""In a work tree of Git, ``.git`` is a file, which holds a path of the machine."""
TEXTS = sorted(
    path
    for pattern in ("feedq/**/*", "tests/**/*", "bench/**/*", "docs/**/*", "*", ".ci/*")
    for path in ROOT.glob(pattern)
    if path.is_file() and path.suffix in TEXT_SUFFIXES and path not in NOT_OURS
)
VAGUE_NAMES = {"cfg", "mgr", "conn", "tmp", "foo", "util", "helper"}


read = cache(Path.read_text)


def where(path: Path, node: ast.AST | None = None) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def statements(block: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Statements and clauses at any depth. Expressions hold none, and are most of a tree."""
    for node in block:
        yield node
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            yield from statements(getattr(node, field, ()))


def nodes(paths: Sequence[Path], word: str, *kinds: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    """Nodes of the modules in whose text there is a word, given as a regular expression.

    Most have none, and to go through all nodes of all modules takes seconds.
    """
    pattern = re.compile(word)
    for path in paths:
        if pattern.search(read(path)):
            for node in ast.walk(parsed(path)):
                if isinstance(node, kinds):
                    yield path, node


def test_modules_and_public_classes_say_what_they_are() -> None:
    silent = [where(path) for path in CODE if read(path) and not re.match(r'(?:#.*\n)*r?"""\S', read(path))]
    silent += [
        f"{where(path, node)} {node.name}"
        for path in PRODUCT
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert silent == []


def test_names_are_words() -> None:
    word = rf"\b(?:{'|'.join(VAGUE_NAMES)})\b"
    arguments = [(path, n, n.arg) for path, n in nodes(CODE, word, ast.arg) if isinstance(n, ast.arg)]
    variables = [
        (path, n, n.id)
        for path, n in nodes(CODE, word, ast.Name)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]
    vague = [f"{where(path, n)} {name}" for path, n, name in [*arguments, *variables] if name in VAGUE_NAMES]
    assert vague == []


def test_nothing_waits_with_asyncio_wait_for() -> None:
    # On Python 3.11 it can swallow a cancellation; asyncio.timeout does not.
    names = [
        (path, n)
        for path, n in nodes(PRODUCT, r"asyncio\s*\.\s*wait_for", ast.Attribute)
        if ast.unparse(n) == "asyncio.wait_for"
    ]
    assert [where(path, n) for path, n in names] == []


def test_no_error_is_swallowed() -> None:
    swallowed = [
        where(path, node)
        for path in PRODUCT
        for node in statements(parsed(path).body)
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
    used = [
        where(path, n)
        for path, n in nodes(TESTS, r"\.\s*(?:skip|xfail|importorskip)", ast.Attribute)
        if ast.unparse(n) in ways_out
    ]
    assert used == []


def test_tests_do_not_mock() -> None:
    imports = [(path, n, ast.unparse(n)) for path, n in nodes(TESTS, r"\bmock\b", ast.Import, ast.ImportFrom)]
    assert [where(path, n) for path, n, line in imports if re.search(r"\bmock\b", line)] == []


SLEEP = r"\bsleep\("


def is_explained(path: Path, node: ast.AST) -> bool:
    """Whether there is a comment on the line of a node or on the one above."""
    lines = read(path).splitlines()
    line = getattr(node, "lineno", 1)
    return any("#" in text for text in lines[max(line - 2, 0) : line])


def test_tests_poll_and_do_not_sleep() -> None:
    """A sleep belongs inside a loop that looks for a condition.

    To see that *nothing* happens takes a moment too; such a sleep has a comment that says so.
    """
    in_loops = {
        id(inner)
        for path in TESTS
        if re.search(SLEEP, read(path))
        for loop in statements(parsed(path).body)
        if isinstance(loop, ast.While | ast.For | ast.AsyncFor)
        for inner in ast.walk(loop)
    }
    loose = [
        where(path, call)
        for path, call in nodes(TESTS, SLEEP, ast.Call)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in {"time.sleep", "sleep", "asyncio.sleep"}
        and id(call) not in in_loops
        and ast.unparse(call.args[0]) != "0"
        and not is_explained(path, call)
    ]
    assert loose == []


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(?:TODO|FIXME|XXX|HACK|TBD)\b")
    assert [where(path) for path in TEXTS if marks.search(read(path))] == []


def test_no_path_of_one_machine_gets_in() -> None:
    private = re.compile(r"(?<![\w.])/(?:work|root|opt/wheels|opt/pypi[\w-]*)/[\w./-]*")
    assert [where(path) for path in TEXTS if private.search(read(path))] == []
