"""Names of modules and classes are made of words of the glossary, of the field, or of plain English."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.house import PACKAGE, PRIVATE_NOUNS, ROOT, parsed

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
NAMED = [
    *(PACKAGE / "worker").rglob("*.py"),
    PACKAGE / "control.py",
    *(p for p in (PACKAGE / "store").rglob("*.py") if "versions" not in p.parts),
    *(PACKAGE / "placement").rglob("*.py"),
    *(PACKAGE / "schedule").rglob("*.py"),
]
OF_THE_FIELD = """
aggregate callback channel client context cron cronfields database dst election env event executor
fold gap grant hash host interrupt limiter listener liveness loop message migration model notify observer
pipe postgresql postgres prepared query queue rate retry ring role row scan serial service socket
spec stack statement status store strategy stream suspect suspend table task thread throttle
transfer
"""
"""Terms that whoever knows Celery, PostgreSQL or schedulers knows."""
PLAIN = """
accept activity announce answer arguments base begin call catch choice connect control count cut day
decided declared down drop dump eligible end entry every exclude exclusion existing fetch
field filter finish followed found given grid held history in kept kind listing means migrate month now
offer once orders outcome plain problem progress range reason report resume right room rule sample
set sleeper smoothed sort spread stop timing unfinished unreadable up view waiter
"""
"""Words of plain English, used as everybody uses them. A noun that has to be learnt belongs in the glossary."""


def stem(word: str) -> str:
    """What a word and its other forms begin with: claim, claims, claimed, claiming."""
    for ending in ("ment", "ing", "er", "ies", "es", "ed", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return stem(word[: -len(ending)])
    return word


def terms() -> list[str]:
    """What the glossary explains: what stands in it in bold, or as another word for that in italics."""
    marked = re.findall(r"\*\*(.+?)\*\*|\*(.+?)\*", GLOSSARY.read_text(), re.DOTALL)
    return [" ".join((bold or italic).lower().split()) for bold, italic in marked]


def names() -> dict[str, Path]:
    """Modules and public classes, and where they stand."""
    found = {path.stem: path for path in NAMED if path.stem != "__init__"}
    for path in NAMED:
        found |= {
            node.name: path
            for node in parsed(path).body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        }
    return found


def words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def test_each_word_of_a_module_or_class_is_explained() -> None:
    explained = {stem(word) for term in terms() for word in term.split()}
    explained |= {stem(word) for word in f"{OF_THE_FIELD} {PLAIN}".split()}
    unknown = {
        f"{path.relative_to(ROOT)}: {name}: {word}"
        for name, path in names().items()
        for word in words(name)
        if stem(word) not in explained
    }
    assert unknown == set(), "explain the word in the glossary, or name the thing in plain words"


def test_the_lists_of_words_hold_only_what_is_used() -> None:
    used = {stem(word) for name in names() for word in words(name)}
    assert {word for word in f"{OF_THE_FIELD} {PLAIN}".split() if stem(word) not in used} == set()


def test_few_nouns_are_our_own_and_the_glossary_explains_them() -> None:
    assert len(PRIVATE_NOUNS) <= 12
    assert set(PRIVATE_NOUNS) <= set(terms())
    assert not set(PRIVATE_NOUNS) & set(f"{OF_THE_FIELD} {PLAIN}".split())
