"""Verbs for feeds that are chosen by what they have in common: which, how many, asked first, and each outcome."""

from __future__ import annotations

import shlex

import pytest

from feedq.core.model import TargetState, WorkerTarget
from feedq.errors import InvalidInput
from tests.api_examples import EXAMPLES
from tests.unit.command import Command

pytestmark = pytest.mark.usefixtures("control")


@pytest.fixture
def command() -> Command:
    made = Command()
    made.feed("acme/a", tenant="acme", labels={"region": "eu"})
    made.feed("acme/b", tenant="acme", labels={"region": "us"})
    made.feed("other/a", tenant="other", labels={"region": "eu"})
    return made


def paused(command: Command) -> list[str]:
    views = command.store.feeds.views()
    return [v.feed.name for v in views if v.feed.spec.target_state is TargetState.PAUSED]


def test_what_is_chosen_is_counted_and_asked_about(command: Command) -> None:
    error = command.refused("feed", "pause", "--tenant", "acme")
    assert error == ("Error: Pause 2 feeds (acme/a, acme/b)? Nobody can answer here; pass --yes\n")
    assert paused(command) == []


def test_a_verb_without_names_and_options_is_refused(command: Command) -> None:
    for verb in ("pause", "resume", "restart", "remove", "move"):
        assert "which feeds? name them, or choose them by tenant" in command.refused("feed", verb, "--yes")


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
def test_an_empty_name_is_refused(command: Command, line: str) -> None:
    worker = command.worker("one")
    refused = command.refused(*shlex.split(line), given="feeds: []\n")
    assert "must not be empty" in refused
    (view,) = command.store.workers.views()
    assert view.worker.target_state is WorkerTarget.SERVING
    assert paused(command) == []
    assert command.refused("worker", "drain", str(worker.id)[:7]).startswith("Error: no worker '")
    assert command.ok("worker", "drain", str(worker.id)[:8]) == "one draining\n"


def test_no_verb_takes_an_empty_name_whoever_asks() -> None:
    for example in EXAMPLES:
        for name, value in example.arguments.items():
            if isinstance(value, str) and name not in ("text", "prefix"):  # which may be empty
                with pytest.raises(InvalidInput, match=name):
                    example.verb.parse({**example.arguments, name: ""})


def test_a_selection_that_matches_nothing_says_so(command: Command) -> None:
    assert command.ok("feed", "list", "--tenant", "nobody") == "no feed matches\n"
    error = command.refused("feed", "pause", "--match", "typo*", "--yes")
    assert error == "Error: no feed matches; nothing is done\n"
    assert Command().ok("feed", "list", "--tenant", "nobody").startswith("no feeds; declare some")


def test_feeds_of_a_worker_move_to_those_with_room(command: Command) -> None:
    source = command.worker("one")
    command.stream()
    command.worker("two", capacity=1)
    result = command.run("feed", "move", "--worker", "one", "--tenant", "acme", "--yes")
    assert result.exit_code == 1
    assert result.stdout == "acme/a moving to two\n"
    assert "1 not moved, 1 moved\n  " in result.stderr
    assert "is full" in result.stderr
    views = command.store.feeds.views()
    assert [v.feed.name for v in views if v.lease.promised_to not in (None, source.id)] == ["acme/a"]
