"""The blocks of the tutorial and the guides that nobody types: each is looked at, or it says here why not."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
import yaml

from feedq.verbs import manifests
from feedq.verbs.manifests import option_problems
from tests.pages import GUIDES, ROOT, TUTORIAL, Block, blocks

BLOCKS = [block for page in (TUTORIAL, *GUIDES) for block in blocks(page)]

TYPED = {"sh", "text", "sql"}
"""`tests/acceptance/test_pages.py` types these, and compares what they show."""
NOT_OURS = {
    "FROM registry.example.com/feedq": "needs a Docker engine",
    "scrape_configs:": "is for Prometheus",
    "livenessProbe:": "is for Kubernetes; the same in deploy/kubernetes is tested",
}
"""How a block begins that is for another program, and why nothing here tries it."""
LOOKED_AT = {"yaml", "json", "toml", "python"}


def of(language: str) -> list[Block]:
    return [b for b in BLOCKS if b.language == language and not b.text.startswith(tuple(NOT_OURS))]


def test_something_looks_at_every_block() -> None:
    known = [(str(b), b.language) for b in BLOCKS if b.text.startswith(tuple(NOT_OURS))]
    assert len(known) == len(NOT_OURS)
    looked_at = TYPED | LOOKED_AT
    assert [(str(b), b.language) for b in BLOCKS if b.language not in looked_at] == [
        one for one in known if one[1] not in looked_at
    ]


PARTS = [b for b in of("yaml") if not re.search(r"^(feeds|schedules):", b.text, re.MULTILINE)]
"""`tests/repository/test_docs.py` reads whole manifests, those of every other page too."""


@pytest.mark.parametrize("block", PARTS, ids=str)
def test_a_part_of_a_feed_is_valid(block: Block) -> None:
    rest = {
        "name": "acme/x",
        "connector": "tcp",
        "source": {"url": "tcp://127.0.0.1:1"},
        "sink": {"table": "x"},
    }
    read = manifests.parse(json.dumps({"feeds": [rest | yaml.safe_load(block.text)]}), origin=str(block))
    assert [str(problem) for problem in read.problems] == []
    assert [problem for d in read.feeds for problem in option_problems(d.spec)] == []


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_parameters_are_those_of_the_template(block: Block) -> None:
    template = (ROOT / "deploy" / "ecs" / "feedq.yaml").read_text().partition("\nResources:")[0]
    assert [name for name in json.loads(block.text) if f"\n  {name}:\n    Type: " not in template] == []


@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_toml_is_a_group_of_entry_points(block: Block) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = tomllib.loads(block.text)["project"]["entry-points"]
    assert groups.keys() <= project["entry-points"].keys()


@pytest.mark.parametrize("block", [b for b in of("python") if b.page != TUTORIAL], ids=str)
def test_python_runs(block: Block) -> None:
    """What it defines is there; the jobs and the server of the tutorial are run when it is typed."""
    names: dict[str, object] = {}
    exec(compile(block.text, str(block), "exec", dont_inherit=True), names)
    assert len(names) > 1
