"""`feedq worker`, `status`, `top` and `connectors`: the fleet, as people and programs see it."""

from __future__ import annotations

from typing import Any

import click
import pytest

from feedq.cli.fleet import FEEDS_SEEN, look, rendered
from feedq.control.store.fleet_state import FleetState
from feedq.core.loss import Loss
from feedq.core.selection import Selection
from tests.unit.command import Command, FakeInvocation, led

pytestmark = pytest.mark.usefixtures("control")


@pytest.fixture
def command() -> Command:
    return Command()


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
