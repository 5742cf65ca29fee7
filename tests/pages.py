"""The fenced blocks of the documentation, for the tests that run or read them."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs" / "tutorial.md"
PACKAGES = ("add-a-connector.md", "add-a-sink.md")
"""Guides whose blocks are the files of one package: `tests/contract/test_howtos.py` makes and tests it."""
GUIDES = tuple(p for p in sorted((ROOT / "docs" / "howto").glob("*.md")) if p.name not in PACKAGES)

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`([\w./-]+\.(?:yaml|yml|py|json))`[^`]*:\n\n$")
"""The end of the paragraph before a block that is a file."""
_NAMES_ITSELF = re.compile(r"# ([\w-]+\.yaml)\n")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    file: str
    """The name under which the page says to save it; empty for most."""
    section: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in _FENCED.finditer(text):
        before = text[: match.start()]
        named = _NAMED.search(before[before.rfind("\n\n", 0, -2) + 1 :]) or _NAMES_ITSELF.match(match[3])
        found.append(
            Block(
                page=page,
                line=before.count("\n") + 1,
                language=match[2],
                text=textwrap.dedent(match[3]),
                file=named[1] if named and match[2] != "sh" else "",
                section=re.findall(r"^## (.*)$", before, re.MULTILINE)[-1] if "\n## " in before else "",
            )
        )
    return found
