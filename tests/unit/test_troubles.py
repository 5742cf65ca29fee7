"""The table of troubles has a row for each, and the docs and the commands that people paste are made from it."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from feedq.core.model import LeaseState, Reason, Status, Unmet, WorkerTarget
from feedq.core.remedies import command
from feedq.errors import SyncRefused
from feedq.verbs.catalogs.syncing import check_removals
from feedq.verbs.diagnosis.checks import problems
from feedq.verbs.diagnosis.waiting_checks import explain
from feedq.verbs.troubles import TROUBLED, TROUBLES
from tests.unit.test_diagnosis import NOW, RULES, feed, warnings, worker

ROOT = Path(__file__).parents[2]
EVIL = """a;rm -rf $HOME "x" `'y'"""
"""More than a name may hold: spaces too."""
PRINTED = re.compile(r"feedq (?:feed|schedule|worker|apply|sync|events)\b[^`;:]*\{(?!command\()")
"""A command of ours, in which something stands that is not quoted."""


def commands(text: str) -> list[list[str]]:
    """The commands between backticks, as a shell reads them."""
    # The name holds a backtick itself.
    found = re.findall(r"`(feedq [^`]*)`", text.replace(shlex.quote(EVIL), "NAME"))
    return [shlex.split(one.replace("NAME", shlex.quote(EVIL))) for one in found]


@pytest.mark.parametrize("status", TROUBLED)
def test_commands_against_each_trouble_can_be_pasted(status: Status) -> None:
    view = replace(feed(EVIL), status=status)
    for text in (explain(view, [], now=NOW, rules=RULES), problems(warnings([view]))[0].advice):
        assert text is not None
        for words in commands(text):
            assert words[0] == "feedq"
            assert EVIL in words or words in (["feedq", "doctor"], ["feedq", "status"])


def test_commands_for_feeds_workers_and_catalogs_can_be_pasted() -> None:
    unexpected = replace(
        feed(EVIL, state=LeaseState.RUNNING, connected=True), unmet=(Unmet("max_silence", NOW, "silent"),)
    )
    (listed,) = problems(warnings([unexpected]))
    assert commands(listed.advice) == [["feedq", "feed", "show", EVIL]]

    waiting = feed(reason=Reason.NO_MATCH, required={"region": "eu"})
    resting = worker(EVIL, labels={"region": "eu"}, target=WorkerTarget.CORDONED)
    text = explain(waiting, [resting], now=NOW, rules=RULES)
    assert commands(str(text)) == [["feedq", "worker", "uncordon", EVIL]]

    with pytest.raises(SyncRefused) as refused:
        check_removals(EVIL, 50, 100, share_max=0.1, remove_up_to=None)
    assert commands(str(refused.value)) == [["feedq", "sync", EVIL, "--remove-up-to", "50"]]


def test_no_command_is_printed_with_a_name_that_is_not_quoted() -> None:
    found = []
    for path in (ROOT / "feedq").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr) and PRINTED.search(_written(node)):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def _written(node: ast.JoinedStr) -> str:
    said = [str(one.value) for one in node.values if isinstance(one, ast.Constant)]
    if not any("feedq " in one for one in said):
        return ""  # to write expressions anew takes long
    return "".join(
        str(one.value) if isinstance(one, ast.Constant) else f"{{{ast.unparse(one.value)}}}"
        for one in node.values
        if isinstance(one, ast.Constant | ast.FormattedValue)
    )


def test_a_command_reads_as_its_words() -> None:
    assert shlex.split(command("feed", "show", EVIL)) == ["feedq", "feed", "show", EVIL]
    assert command("feed", "show", "acme/orders") == "feedq feed show acme/orders"


def test_every_status_that_is_trouble_and_every_reason_to_wait_has_one_row() -> None:
    rows = [(one.cause, one.reason) for one in TROUBLES]
    assert len(set(rows)) == len(rows)
    well = {
        Status.STREAMING,
        Status.CONNECTING,
        Status.STARTING,
        Status.STOPPING,
        Status.PAUSED,
        Status.REMOVING,
    }
    assert set(TROUBLED) == set(Status) - well


def test_recover_has_the_table() -> None:
    page = (ROOT / "docs/howto/recover.md").read_text()
    rows = [
        f"| `{one.cause}`{f', `{one.reason}`' if one.reason else ''} | {one.sentence} | {one.remedy} |\n"
        for one in TROUBLES
    ]
    assert "".join(rows) in page
