"""`feedq worker cordon`, `uncordon`, `drain` and `feedq feed move`."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from feedq.core.model import LeaseState
from tests.unit.command import Command

pytestmark = pytest.mark.usefixtures("control")


@pytest.fixture
def command() -> Command:
    return Command()


def two_workers_with(command: Command, *feeds: str) -> None:
    """All of the feeds stream on ``one``, and ``two`` has just joined."""
    command.worker("one")
    for name in feeds:
        command.feed(name)
    command.stream()
    command.worker("two")


def hand_over(command: Command, *, at_most: int = 100) -> None:
    """What workers and passes do next: owners that were asked let go, and the feeds go on where they belong."""
    with capture_logs():  # a pass logs to where the command writes
        command.reconcile()
        asked = [v for v in command.store.feeds.views() if v.lease.state is LeaseState.STOPPING]
        for view in asked[:at_most]:
            assert view.lease.reason is not None
            command.release(view.feed.name, view.lease.reason)
        command.stream()


def where(command: Command) -> dict[str, str | None]:
    return {view.feed.name: view.worker for view in command.store.feeds.views()}


def target_states(command: Command) -> dict[str, str]:
    workers = [row["worker"] for row in command.json("worker", "list")]
    return {worker["name"]: worker["target_state"] for worker in workers}


# -- cordon and drain --------------------------------------------------------------------------------


def test_a_drain_waits_until_every_feed_has_another_place(command: Command) -> None:
    two_workers_with(command, *"abcdefgh")
    command.during_waits(lambda: hand_over(command, at_most=1))
    result = command.run("worker", "drain", "one", "--wait")
    assert result.exit_code == 0, result.output
    assert result.stdout == "one drained\n"
    assert set(where(command).values()) == {"two"}
    assert target_states(command)["one"] == "drained"


def test_a_feed_without_another_place_stays_and_the_drain_says_why(command: Command) -> None:
    command.worker("one")
    command.feed("a")
    command.stream()
    command.during_waits(lambda: hand_over(command))
    error = command.refused("worker", "drain", "one", "--wait", "--timeout", "0", status=1)
    assert "one hands over its 1 feed: not within 0 s; it may still happen. `feedq status` says" in error
    assert command.view("a").lease.state is LeaseState.RUNNING


# -- one feed ----------------------------------------------------------------------------------------


def test_a_feed_is_moved_and_shows_where_to_meanwhile(command: Command) -> None:
    two_workers_with(command, "a")
    two = next(v.worker for v in command.store.workers.views() if v.worker.name == "two")
    assert command.ok("feed", "move", "a", "--to", "two") == "a moving to two\n"
    shown = command.json("feed", "show", "a")
    lease = shown["view"]["lease"]
    assert (lease["state"], lease["reason"], lease["promised_to"]) == ("stopping", "moved", str(two.id))
    assert (shown["view"]["status"], shown["goes_to"]) == ("stopping", "two")
    assert shown["explanation"].startswith("it is being moved to two; its owner has until ")
    assert "why" in command.ok("feed", "show", "a")
    status = command.ok("status")
    assert "moving" in status
    assert "1 on their way to another worker" in status
    hand_over(command)
    assert where(command) == {"a": "two"}
    assert command.json("feed", "show", "a")["explanation"] is None


def test_a_feed_that_is_on_the_worker_already_stays_there(command: Command) -> None:
    command.worker("one", capacity=1)
    command.feed("a")
    command.stream()
    assert command.ok("feed", "move", "a", "--to", "one", "--wait") == "a is already on one\n"
    assert command.json("feed", "move", "a", "--to", "one")["done"][0]["already"] is True
    assert command.view("a").lease.state is LeaseState.RUNNING


def test_a_move_that_takes_too_long_says_what_it_waits_for(command: Command) -> None:
    two_workers_with(command, "a")
    error = command.refused("feed", "move", "a", "--to", "two", "--wait", "--timeout", "0", status=1)
    assert "a on another worker: not within 0 s; it may still happen. it is being moved to two" in error


# -- waiting ----------------------------------------------------------------------------------------


def test_waiting_ends_when_it_has_happened(command: Command) -> None:
    command.feed("a")
    command.worker("w")
    command.during_waits(command.stream)
    assert command.ok("feed", "restart", "a", "--wait").endswith("a restarted\n")
    assert command.view("a").lease.records_total == 1_000


def test_remove_waits_until_nothing_is_left(command: Command) -> None:
    command.feed("a")
    command.during_waits(command.reconcile)
    assert command.ok("feed", "remove", "a", "--yes", "--wait").endswith("a removed\n")
    assert command.store.feeds.views() == []
