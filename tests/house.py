"""``python -m tests.house``: how large the code is, which names in it stand more than once, and before."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.mutants.listed import MUTANTS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "feedq"
SAME_EVERYWHERE = {"__init__", "base", "model"}
"""Modules whose name means the same in each folder."""
PRIVATE_NOUNS = (
    *("band", "blame", "hint", "hold", "lane", "note", "promise", "rewound", "segment", "settle", "share"),
    "trust window",
)
"""Nouns of our own, which only the glossary explains. All others are the field's, or plain English."""
RECORD_PATH = (
    "connectors/wire/connection.py",
    "connectors/tcp.py",
    "records/framing.py",
    "worker/batch_queue.py",
    "worker/writer.py",
    "worker/writing_session.py",
    "sinks/groupcommit.py",
    "sinks/copyplan.py",
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
    "store/database.py",
    "worker/loops.py",
    "worker/runner.py",
)
"""The same for one claim, from the notification of an assignment to the runner of the feed."""
TEST_FOLDERS = [
    f"tests/{name}"
    for name in (
        "repository",
        "unit",
        "live",
        "scenarios",
        "simulation",
        "contract",
        "acceptance",
        "chaos",
        "peers",
    )
]
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


def worker_protocols() -> list[str]:
    """Modules that decide for a worker until when it may act as an owner, or what becomes of its leases: they
    begin a trust window or move a lease by themselves. A control database moves leases, too, for others."""
    found = []
    for path in [*modules(), *sorted((ROOT / "tests" / "fakes").rglob("*.py"))]:
        place = path.relative_to(ROOT)
        names = imported(parsed(path), "feedq.lease")
        calls = {called(node.func) for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)}
        decides = calls & {"TrustWindow.after_heartbeat", "transition"}
        if decides and names & {"TrustWindow", "transition"} and not {"store", "memory"} & set(place.parts):
            found.append(str(place))
    return found


def imported(tree: ast.Module, module: str) -> set[str]:
    """Names that come from this module."""
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == module]
    return {alias.name for node in froms for alias in node.names}


def called(function: ast.expr) -> str:
    return ast.unparse(function) if isinstance(function, ast.Name | ast.Attribute) else ""


def tests_by_folder() -> dict[str, int]:
    """How many tests pytest finds in each folder of `tests`."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        *TEST_FOLDERS,
    ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return Counter(line.split("/")[1] for line in found.stdout.splitlines() if "::" in line)


@dataclass(frozen=True, slots=True)
class Measure:
    """A row of the table: what it was before, what it must be, what it is."""

    what: str
    before: str
    """At 148c59b."""
    start: str
    """When the work on the house began."""
    must: str
    now: str

    def __str__(self) -> str:
        return f"{self.what:<40} {self.before:>13} {self.start:>13} {self.now:>13}   {self.must}"


def measures() -> list[Measure]:
    texts = {path: path.read_text() for path in modules()}

    def of_path(path: tuple[str, ...]) -> str:
        return f"{len(path)}, {sum(texts[PACKAGE / name].count(chr(10)) for name in path):,}"

    lines = sum(text.count("\n") for text in texts.values())
    code = sum(map(lines_of_code, texts.values()))
    classes, names = twice(public_classes()), twice(module_names())
    return [
        Measure("files of feedq/", "362", "395", "", f"{len(texts)}"),
        Measure("lines", "54,182", "65,804", "43,000 or fewer", f"{lines:,}"),
        Measure("lines of code", "38,616", "47,125", "31,000 or fewer", f"{code:,}"),
        Measure(
            "files for one record, their lines", "15, 3,900", "", "9, 2,400 or fewer", of_path(RECORD_PATH)
        ),
        Measure("files for one claim, their lines", "14", "", "8 or fewer", of_path(CLAIM_PATH)),
        Measure("class names that recur", "40", "43", "0", f"{len(classes)}"),
        Measure("module names that recur", "48", "45", "12 or fewer", f"{len(names)}"),
        Measure("private nouns", "about 40", "", "12 or fewer", f"{len(PRIVATE_NOUNS)}"),
        Measure("implementations of the worker's protocol", "4", "4", "1", f"{len(worker_protocols())}"),
        Measure("mutants that tests must notice", "", "", "60 or more", f"{len(MUTANTS)}"),
    ]


def main() -> None:
    print(Measure("", "148c59b", "start", "must", "now"))
    for measure in measures():
        print(measure)
    tests = tests_by_folder()
    print(
        f"\ntests: {sum(tests.values()):,} (" + ", ".join(f"{n:,} {name}" for name, n in tests.items()) + ")"
    )
    for kind, found in (("class", twice(public_classes())), ("module", twice(module_names()))):
        print(f"\n{kind} names that recur:" + ("" if found else " none"))
        for name, places in found.items():
            print(f"    {name}: {', '.join(places)}")


if __name__ == "__main__":
    main()
