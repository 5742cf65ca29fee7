"""What ``mkdocs.yml`` cannot say: the order of the pages, links that leave ``docs/``, and pictures.

Pages come in the order in which ``index.md`` names them, so a new one needs a line there and nowhere else. A link
to a file elsewhere in the repository leads to it on GitHub. Mermaid diagrams are drawn while the site is built.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import mmdr
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
FOLDERS = {"How to": "howto", "Reference": "reference", "Explanation": "explanation", "Decisions": "adr"}
BOOSTS = {
    "howto/troubleshoot.md": 5,
    "reference/settings.md": 3,
    "howto/recover.md": 2,
    "reference/control-tables.md": 0.5,
    "adr": 0.2,
}
"""Search, by page or folder: whoever describes a symptom wants its remedy first, and the decisions last."""
LINK = re.compile(r"(?<=\]\()(\.\./[^)\s]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    tabs: list[dict[str, Any]] = [{"Home": "index.md"}, {"Tutorial": "tutorial.md"}]
    config.nav = [*tabs, *({title: _pages(folder)} for title, folder in FOLDERS.items())]
    config.mdx_configs["pymdownx.superfences"] = {
        "custom_fences": [{"name": "mermaid", "class": "mermaid", "format": _picture}]
    }
    return config


def _pages(folder: str) -> list[str]:
    index = (DOCS / "index.md").read_text()
    pages = [f"{folder}/{path.name}" for path in (DOCS / folder).glob("*.md")]
    return sorted(pages, key=lambda page: (index.find(f"({page})") % (len(index) + 1), page))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    here = posixpath.dirname(page.file.src_uri)
    page.meta["search"] = {"boost": BOOSTS.get(page.file.src_uri, BOOSTS.get(here, 1))}

    def link(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", here, found[1]))
        inside = path.startswith("docs/")
        return found[1] if inside else f"{config.extra['repository']}/blob/main/{path}"

    return LINK.sub(link, markdown)


def _picture(source: str, *_: Any, **__: Any) -> str:
    font = '%%{init: {"fontFamily": "arial, sans-serif"}}%%\n'
    return f'<figure style="background: white">{mmdr.render(font + source).svg()}</figure>'
