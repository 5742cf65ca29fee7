"""``python -m tests.house``: how large the code is, how it is divided, and which names in it stand twice."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "feedq"
TESTS = ROOT / "tests"
SAME_EVERYWHERE = {"__init__", "base", "model"}
"""Modules whose name means the same in each room."""
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def modules(folder: Path = PACKAGE) -> list[Path]:
    return sorted(folder.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def lines_of_code(text: str) -> int:
    """Lines that hold code: neither blank, nor a comment, nor part of a docstring."""
    held = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(held - set(docstring_lines(ast.parse(text))))


def docstring_lines(tree: ast.Module) -> Iterator[int]:
    """Strings that stand alone: docstrings, and what is said below a constant."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def sizes(folder: Path) -> dict[str, tuple[int, int]]:
    """Files and lines of code of each room of a folder; its loose modules count as one, named ``""``."""
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for path in modules(folder):
        room = path.relative_to(folder).parts[0] if path.parent != folder else ""
        files, code = found[room]
        found[room] = (files + 1, code + lines_of_code(path.read_text()))
    return found


def public_classes() -> Iterator[tuple[str, Path]]:
    for path in modules():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, path


def module_names() -> Iterator[tuple[str, Path]]:
    return ((path.stem, path) for path in modules() if path.stem not in SAME_EVERYWHERE)


def twice(named: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in named:
        places[name].append(str(path.relative_to(ROOT)))
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def main() -> None:
    for folder in (PACKAGE, TESTS):
        rooms = sizes(folder)
        loose = rooms.pop("", (0, 0))
        counts = [loose, *rooms.values()]
        files, code = sum(files for files, _ in counts), sum(code for _, code in counts)
        print(f"{folder.name}/: {code:,} lines of code in {files} files; {len(rooms)} rooms")
        print(f"  {'loose modules':<16} {loose[0]:>4} files {loose[1]:>7,}")
        for name, (files, code) in sorted(rooms.items(), key=lambda room: -room[1][1]):
            print(f"  {name:<16} {files:>4} files {code:>7,}")
    for kind, named in (("classes", public_classes()), ("modules", module_names())):
        found = twice(named)
        print(f"names of {kind} that stand twice: {len(found)}")
        for name, places in found.items():
            print(f"  {name}: {', '.join(places)}")


if __name__ == "__main__":
    main()
