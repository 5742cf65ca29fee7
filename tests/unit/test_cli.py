"""Commands in this process: how they answer, what they choose, and `feedq apply`."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from feedq.cli import main
from feedq.cli.doing import ApiConnection
from feedq.cli.fleet import FEEDS_SEEN, look, rendered
from feedq.cli.invocation import Invocation
from feedq.cli.output import ProgressLine
from feedq.control.store.feeds import FeedChange
from feedq.control.store.fleet_state import FleetState
from feedq.core.loss import Loss
from feedq.core.model import Feed, TargetState, Version, WorkerTarget
from feedq.core.selection import Selection
from feedq.errors import FeedqError, InvalidInput, Unavailable
from feedq.local.datadir import DataDir
from feedq.settings import settings
from feedq.verbs import bulk
from feedq.verbs.feeds import FeedAction, act_on_feeds, list_feeds
from feedq.verbs.registry import OF, Page, Verb, encode
from tests.api_examples import EXAMPLES
from tests.unit.command import URL, Command, FakeInvocation, led

pytestmark = pytest.mark.usefixtures("control")


@pytest.fixture
def command() -> Command:
    return Command()


# -- answers -------------------------------------------------------------------------------------------


DATABASE_URL = "postgresql://operator:hunter2@127.0.0.1:1/feedq"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_is_printed_for_a_shell(command: Command, shell: str) -> None:
    assert f"_FEEDQ_COMPLETE={shell}_complete" in command.ok("completion", shell)


# -- the stack that runs here ------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    # Whatever a command sets is taken back.
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if not k.startswith("FEEDQ_")})
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


def test_a_stack_that_runs_in_this_directory_is_found_and_said(here: Path) -> None:
    stack = DataDir(here / ".feedq")
    with stack.held():
        stack.write_settings({"FEEDQ_DATABASE_URL": DATABASE_URL})
        ran = CliRunner().invoke(main, ["feed", "list"], obj=Invocation())
        assert ran.exit_code == 1
        assert ran.stdout == ""
        said, error = ran.stderr.splitlines()
        assert said == f"(using the feedq up in {here / '.feedq'})"
        assert "postgresql://operator:***@127.0.0.1:1/feedq" in error


@pytest.mark.parametrize(("total", "shown"), [(10, "5 of 10 feeds"), (None, "5 feeds")])
def test_progress_shows_itself_after_a_second_and_clears_its_line(
    total: int | None, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passed_s = iter((0.0, 0.5, 2.0, 2.01))
    monkeypatch.setattr(time, "monotonic", lambda: next(passed_s))
    with ProgressLine("feeds") as progress:
        progress.may_show = True
        for done in (1, 5, 6):
            progress(done, total)
    assert capsys.readouterr().err == f"\r{shown}\r"  # the rest is for terminals alone


# -- verbs that commands have done ---------------------------------------------------------------------


class Pages(Invocation):
    """A list of so many numbers, of which a page is asked for."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self.total = total
        self.asked: list[str | None] = []

    def do_named(self, verb: Verb, given: Mapping[str, Any]) -> Page[int]:
        self.asked.append(given["cursor"])
        first = int(given["cursor"] or 0)
        last = min(first + given["limit"], self.total)
        return Page(list(range(first, last)), str(last) if last < self.total else None)


def test_a_list_is_asked_for_page_by_page_as_far_as_it_is_wanted() -> None:
    for total, asked in ((0, [None]), (500, [None]), (1_200, [None, "500", "1000"])):
        pages = Pages(total)
        found: list[Any] = list(pages.pages(list_feeds))
        assert (found, pages.asked) == (list(range(total)), asked)
    pages = Pages(1_200)
    assert [one for one, _ in zip(pages.pages(list_feeds), range(3), strict=False)] == [*range(3)]
    assert pages.asked == [None]


class BrokenOff(ApiConnection):
    """Hears of progress, and of nothing else."""

    def __init__(self) -> None:
        self._url = "https://feedq.example"

    def events(self, *_: Any, **__: Any) -> Any:
        def told() -> Iterator[tuple[str, bytes]]:
            yield "progress", encode({"done": 3, "total": None})

        return told()


def test_an_answer_that_never_comes_is_an_error_and_no_success() -> None:
    heard: list[tuple[int, int | None]] = []
    verb = OF[act_on_feeds]
    arguments = verb.arguments(action=FeedAction.PAUSE, select={"names": ["a"]})
    with pytest.raises(Unavailable, match="broke off its answer; check what it has done"):
        BrokenOff().do(verb, arguments, lambda done, total: heard.append((done, total)))
    assert heard == [(3, None)]


# -- feeds that are chosen by what they have in common -------------------------------------------------


@pytest.fixture
def three(command: Command) -> Command:
    """Three feeds, two of a tenant, and two with a label."""
    made = command
    made.feed("acme/a", tenant="acme", labels={"region": "eu"})
    made.feed("acme/b", tenant="acme", labels={"region": "us"})
    made.feed("other/a", tenant="other", labels={"region": "eu"})
    return made


def paused(command: Command) -> list[str]:
    views = command.store.feeds.views()
    return [v.feed.name for v in views if v.feed.spec.target_state is TargetState.PAUSED]


def test_what_is_chosen_is_counted_and_asked_about(three: Command) -> None:
    error = three.refused("feed", "pause", "--tenant", "acme")
    assert error == ("Error: Pause 2 feeds (acme/a, acme/b)? There is no terminal to answer on; pass --yes\n")
    assert paused(three) == []


def test_a_verb_without_names_and_options_is_refused(three: Command) -> None:
    for verb in ("pause", "resume", "restart", "remove", "move"):
        assert "which feeds? name them, or choose them by tenant" in three.refused("feed", verb, "--yes")


EMPTY = (
    "worker drain ''",
    "worker show ''",
    "feed move acme/a --to ''",
    "feed pause --tenant '' --yes",
    "feed pause --worker '' --yes",
    "feed list --match ''",
    "feed show ''",
    "feed pause ''",
    "export --tenant ''",
    "apply -f - --prune --tenant '' --yes",
    "events --feed ''",
    "schedule trigger ''",
    "schedule next ''",
    "token remove ''",
)
"""What a script asks whose variable is not set."""


@pytest.mark.parametrize("line", EMPTY)
def test_an_empty_name_is_refused(three: Command, line: str) -> None:
    worker = three.worker("one")
    refused = three.refused(*shlex.split(line), given="feeds: []\n")
    assert "must not be empty" in refused
    (view,) = three.store.workers.views()
    assert view.worker.target_state is WorkerTarget.SERVING
    assert paused(three) == []
    assert three.refused("worker", "drain", str(worker.id)[:7]).startswith("Error: no worker '")
    assert three.ok("worker", "drain", str(worker.id)[:8]) == "one draining\n"


def test_no_verb_takes_an_empty_name_whoever_asks() -> None:
    for example in EXAMPLES:
        for name, value in example.arguments.items():
            if isinstance(value, str) and name not in ("text", "prefix"):  # which may be empty
                with pytest.raises(InvalidInput, match=name):
                    example.verb.parse({**example.arguments, name: ""})


def test_a_selection_that_matches_nothing_says_so(three: Command) -> None:
    assert three.ok("feed", "list", "--tenant", "nobody") == "no feed matches\n"
    error = three.refused("feed", "pause", "--match", "typo*", "--yes")
    assert error == "Error: no feed matches; nothing is done\n"
    assert Command().ok("feed", "list", "--tenant", "nobody").startswith("no feeds; declare some")


def test_feeds_of_a_worker_move_to_those_with_room(three: Command) -> None:
    source = three.worker("one")
    three.stream()
    three.worker("two", capacity=1)
    result = three.run("feed", "move", "--worker", "one", "--tenant", "acme", "--yes")
    assert result.exit_code == 1
    assert result.stdout == "acme/a moving to two\n"
    assert "1 not moved, 1 moved\n  " in result.stderr
    assert "is full" in result.stderr
    views = three.store.feeds.views()
    assert [v.feed.name for v in views if v.lease.promised_to not in (None, source.id)] == ["acme/a"]


# -- apply: all or nothing, and what changes is shown --------------------------------------------------


FEED = f"{{connector: tcp, source: {{url: '{URL}'}}, sink: {{table: t}}, name: "


def feeds(*lines: str) -> str:
    return "feeds:\n" + "".join(f"- {FEED}{line}}}\n" for line in lines)


def names(command: Command) -> list[str]:
    return [view.feed.name for view in command.store.feeds.views() if view.feed.removed_at is None]


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
    assert "1 of 3 were changed before that; repeat it to change the rest: " in result.stderr
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
    assert "holds no manifest: no file ends in .yaml" in command.refused("apply", "-f", str(empty))


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
    assert command.ok("lint", "-f", "-", given=feeds("a", "b")) == "2 feeds: no mistakes\n"
    error = command.refused("lint", "-f", "-", given=feeds("a").replace("connector", "conector"))
    assert "did you mean connector?" in error


# -- the fleet, as people and programs see it --------------------------------------------------------


def warnings(command: Command) -> dict[str, str]:
    return {w["name"]: w["detail"] for w in command.json("status")["warnings"]}


# -- worker ------------------------------------------------------------------------------------------


def test_a_lost_worker_is_listed_with_how_it_was_lost_and_nothing_else(command: Command) -> None:
    lost = command.worker("one")
    command.worker("two")
    command.store.workers.report_loss(
        lost.id, Loss("killed", "by a signal, or by its own code without a message")
    )
    command.store.workers.leave(lost.id)
    command.clock.advance(60)
    assert "killed" not in command.ok("worker", "list")
    listed = command.ok("worker", "list", "--all").splitlines()
    assert listed[1].split()[:2] == ["one", "gone"]
    assert listed[1].endswith(" killed: by a signal, or by its own code without a message")
    rows = {row["worker"]["name"]: row["worker"] for row in command.json("worker", "list", "--all")}
    assert rows["one"]["loss"].startswith("killed: ")
    assert rows["two"]["loss"] is None


# -- status ------------------------------------------------------------------------------------------


def test_capacity_that_leaves_no_room_for_a_lost_worker_is_warned_of(command: Command) -> None:
    command.worker("one", capacity=2)
    command.worker("two", capacity=2)
    for name in "abc":
        command.feed(name)
    command.stream()
    found = warnings(command)["capacity"]
    assert "when the largest worker dies, only 2 are left and 1 feed cannot run" in found
    assert "1 feed cannot run" in command.ok("status")


def test_a_missing_beat_and_a_late_pass_are_warned_of(command: Command) -> None:
    command.worker("one")
    command.worker("two")
    command.fleet = led(command.clock, pass_age_s=100, leads=False)
    found = warnings(command)
    assert found["beat"] == "no beat leads; the last was host:99"
    assert found["reconcile"] == "the last pass finished 100 s ago"
    command.fleet = FleetState(command.clock.now(), None, None, None)
    found = warnings(command)
    assert found["beat"] == "no beat leads; none was ever elected"
    assert "no pass has ever finished" in found["reconcile"]


# -- top ---------------------------------------------------------------------------------------------


def test_top_prints_a_line_a_look_without_a_terminal(command: Command) -> None:
    command.worker("one")
    command.feed("a")
    command.stream()
    lines = command.ok("top", "--count", "2", "--interval", "0.1").splitlines()
    assert lines[0] == "00:01:00 1 feeds (1 streaming), workers: 1 serving (1/10), 0 rows/s"
    assert len(lines) == 2


def test_top_shows_troubled_feeds_first_and_a_hundred_of_them_at_most(command: Command) -> None:
    worker = command.worker("one", capacity=200)
    for number in range(FEEDS_SEEN + 5):
        command.feed(f"f{number:03}")
    command.stream()
    lease = command.view("f009").lease
    command.report(worker.id, lease.feed_id, lease.epoch, error="no", attempts=1, failures=9)
    document = command.json("top", "--count", "1")
    seen = [view["feed"]["spec"]["name"] for view in document["feeds"]]
    assert (seen[:2], len(seen)) == (["f009", "f000"], FEEDS_SEEN)
    only = command.json("top", "f001", "--count", "1")["feeds"]
    assert [view["feed"]["spec"]["name"] for view in only] == ["f001"]


@pytest.mark.parametrize(("height", "width"), [(10, 80), (24, 120)])
def test_top_fills_a_terminal_and_no_more(command: Command, height: int, width: int) -> None:
    command.worker("one")
    for number in range(70):
        command.feed(f"f{number:02}")
    frame = look(FakeInvocation(command.store, clock=command.clock), Selection())
    shown = rendered(frame, width=width, height=height, last="Ctrl-C leaves")
    lines = [click.unstyle(line).rstrip() for line in shown]
    assert (len(lines), max(map(len, lines)) <= width) == (height, True)
    assert lines[-1].endswith("more feeds; Ctrl-C leaves")


# -- feeds that fare badly, and workers that stand still ---------------------------------------------


def test_what_a_source_and_a_sink_sent_is_printed_and_not_obeyed(command: Command) -> None:
    nasty = "\x1b]0;owned\x07\u202egnp"
    worker = command.worker("one")
    command.feed("acme/orders")
    command.stream()
    lease = command.view("acme/orders").lease
    reports: list[dict[str, Any]] = [
        {"error": nasty, "attempts": 1, "failures": 7},
        {"dead_letters": 5, "dead_letter_error": nasty},
        {"sink_error": nasty},
    ]
    for changes in reports:
        command.report(worker.id, lease.feed_id, lease.epoch, **{"records": 0, **changes})
        for view in (["feed", "list"], ["feed", "show", "acme/orders"], ["status"]):
            out = command.ok(*view)
            assert "\x1b" not in out
            assert "\u202e" not in out
            assert "\\x1b]0;owned\\x07\\u202egnp" in out, view
