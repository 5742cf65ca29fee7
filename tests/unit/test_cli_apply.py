"""`feedq apply`: all or nothing, and what changes is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from feedq.control.store.feeds import FeedChange
from feedq.core.model import Feed, TargetState, Version
from feedq.errors import FeedqError
from feedq.verbs import bulk
from tests.unit.command import URL, Command

pytestmark = pytest.mark.usefixtures("control")

FEED = f"{{connector: tcp, source: {{url: '{URL}'}}, sink: {{table: t}}, name: "


@pytest.fixture
def command() -> Command:
    return Command()


def feeds(*lines: str) -> str:
    return "feeds:\n" + "".join(f"- {FEED}{line}}}\n" for line in lines)


def names(command: Command) -> list[str]:
    return [view.feed.name for view in command.store.feeds.views() if view.feed.removed_at is None]


def test_applying_does_not_wake_what_a_person_paused(command: Command) -> None:
    command.ok("apply", "-f", "-", given=feeds("a"))
    command.ok("feed", "pause", "a")
    command.ok("apply", "-f", "-", given=feeds("a, weight: 2"))
    assert command.spec("a").target_state is TargetState.PAUSED
    out = command.ok("apply", "-f", "-", given=feeds("a, weight: 2, target_state: running"))
    assert '    target_state: "paused" -> "running"\n' in out
    assert command.spec("a").target_state is not TargetState.PAUSED


def test_a_feed_that_somebody_else_declares_meanwhile_is_named_and_the_others_are_added(
    command: Command,
) -> None:
    declared = command.store.feeds.declared

    def taken_after_looking(**chosen: Any) -> list[Feed]:
        found = declared(**chosen)
        command.store.feeds.declared = declared  # type: ignore[method-assign]
        command.feed("b")
        return found

    command.store.feeds.declared = taken_after_looking  # type: ignore[method-assign] # what happens meanwhile
    error = command.run("apply", "-f", "-", given=feeds("a", "b", "c")).stderr
    assert "feed 'b': feed 'b' exists already" in error
    assert "2 of 3 changes were made; applying again makes the rest" in error
    assert names(command) == ["a", "b", "c"]


def test_a_database_that_goes_away_half_way_is_told_with_what_was_done(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "TOGETHER_MAX", 1)
    change = command.store.feeds.change

    def change_one_only(changes: Sequence[FeedChange]) -> list[Version | FeedqError]:
        made = change(changes)
        command.store.control.is_away = True
        return made

    command.store.feeds.change = change_one_only  # type: ignore[method-assign] # what happens meanwhile is the point
    result = command.run("apply", "-f", "-", given=feeds("a", "b", "c"))
    assert result.exit_code == 1
    assert "1 of 3 were changed before; doing it again changes the rest: " in result.stderr
    command.store.control.is_away = False
    assert names(command) == ["a"]


# -- directories, dry runs, lint -------------------------------------------------------------------------


def test_all_manifests_of_a_directory_are_applied(command: Command, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "b.yaml").write_text(feeds("b"))
    (tmp_path / "below" / "a.yml").write_text(feeds("a"))
    (tmp_path / "notes.txt").write_text("no manifest")
    command.ok("apply", "-f", str(tmp_path))
    assert names(command) == ["a", "b"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no manifest, which is a file that ends in .yaml" in command.refused("apply", "-f", str(empty))


def test_a_dry_run_says_what_would_change_and_changes_nothing(command: Command) -> None:
    command.feed("a")
    same = command.ok("export")
    tried = ("apply", "-f", "-", "--dry-run")
    assert command.ok(*tried, given=same) == "0 added, 0 changed, 0 removed, = 1 unchanged (dry run)\n"
    assert json.loads(command.ok(*tried, "--json", given=same))["changes"] == []
    differs = command.ok(*tried, given=same.replace("table: t", "table: u"))
    assert differs.startswith('~ a\n    sink.table: "t" -> "u"\n0 added, 1 changed')
    assert command.ok(*tried, "--prune", given="feeds: []\n").startswith("- a\n0 added, 0 changed, 1 removed")
    assert "must be a list" in command.refused(*tried, given="feeds: 1\n", status=2)
    assert "--tenant: limits prune" in command.refused("apply", "-f", "-", "--tenant", "acme", given=same)
    command.store.control.is_away = True
    command.refused(*tried, given=same, status=1)
    command.store.control.is_away = False
    assert command.spec("a").sink == {"table": "t"}


def test_lint_finds_mistakes_without_a_server(command: Command) -> None:
    command.store.control.is_away = True
    assert command.ok("lint", "-f", "-", given=feeds("a", "b")) == "2 feeds: right\n"
    error = command.refused("lint", "-f", "-", given=feeds("a").replace("connector", "conector"))
    assert "did you mean connector?" in error
