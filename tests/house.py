"""``python -m tests.house``: how large the code is, and which names in it stand more than once."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "feedq"
SAME_EVERYWHERE = {"__init__", "base", "model"}
"""Modules whose name means the same in each folder."""
RECORD_PATH = (
    "connectors/wire/connection.py",
    "connectors/tcp.py",
    "connectors/records/framing.py",
    "connectors/records/cursor.py",
    "worker/runner.py",
    "worker/batch_queue.py",
    "worker/writer.py",
    "sinks/transactional.py",
    "sinks/groupcommit.py",
    "sinks/postgresql_catalog.py",
    "sinks/copyplan.py",
    "sinks/copybinary.py",
    "sinks/postgresql_session.py",
)
"""The files with a function that one record of a ``tcp`` feed passes through, from the socket to COPY.
`tests/contract/test_house_paths.py` traces one, and finds these and no others."""
CLAIM_PATH = (
    "worker/lease_keeper.py",
    "worker/supervisor.py",
    "worker/core.py",
    "worker/lease_client.py",
    "store/leases.py",
    "store/aggregate.py",
    "worker/runner.py",
)
"""The same for one claim, from the notification of an assignment to the runner of the feed."""
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


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


def public_classes() -> dict[str, list[str]]:
    """Where each public class stands, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def module_names() -> dict[str, list[str]]:
    """Where each module stands, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        if path.stem not in SAME_EVERYWHERE:
            found[path.stem].append(str(path.relative_to(ROOT)))
    return found


def twice(found: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def main() -> None:
    texts = {path: path.read_text() for path in modules()}
    print(f"files of feedq/            {len(texts):>7,}")
    print(f"lines                      {sum(text.count(chr(10)) for text in texts.values()):>7,}")
    print(f"lines of code              {sum(map(lines_of_code, texts.values())):>7,}")
    for what, path in (("record", RECORD_PATH), ("claim", CLAIM_PATH)):
        lines = sum(texts[PACKAGE / name].count(chr(10)) for name in path)
        print(f"files for one {what + ', lines':<12} {len(path):>7,} {lines:>7,}")
    for kind, found in (("class", twice(public_classes())), ("module", twice(module_names()))):
        print(f"{kind + ' names that recur':<26} {len(found):>7,}")
        for name, places in found.items():
            print(f"    {name}: {', '.join(places)}")


if __name__ == "__main__":
    main()
