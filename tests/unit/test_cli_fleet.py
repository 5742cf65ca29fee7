"""`feedq worker`, `status`, `top` and `connectors`: the fleet, as people and programs see it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import orjson
import pytest

from feedq.cli.root import said
from feedq.control.store.fleet_state import FleetState
from feedq.core.model import Load, Loss, NewWorker, Reason, TargetState
from tests.unit.command import Command, led


@pytest.fixture
def command() -> Command:
    return Command()


def warnings(command: Command) -> dict[str, str]:
    return {w["name"]: w["detail"] for w in command.json("status")["warnings"]}


# -- worker ------------------------------------------------------------------------------------------


def test_workers_are_listed_with_load_and_spread(command: Command) -> None:
    command.worker("one")
    command.worker("two")
    for name in "abc":
        command.feed(name)
    command.stream()
    out = command.ok("worker", "list").splitlines()
    assert out[0].split()[:5] == ["NAME", "STATE", "TARGET", "FEEDS", "USED"]
    assert out[1].split()[:3] == ["one", "active", "serving"]
    assert out[-1] == "spread: 1 to 2 feeds on a worker that serves"


def test_workers_as_json_have_the_columns_of_the_tables(command: Command) -> None:
    worker = command.worker("one")
    command.feed("a")
    command.stream()
    (row,) = command.json("worker", "list")
    assert row["id"] == str(worker.id)
    assert (row["name"], row["host"], row["pid"], row["state"]) == ("one", "host", 4711, "active")
    assert (row["feeds"], row["capacity"], row["utilisation"], row["cpu"]) == (1, 10, 0.1, 0.25)
    assert (row["target_state"], row["load"]) == ("serving", 1)
    assert row["heartbeat_age_s"] == 60


def test_a_worker_is_found_by_name_or_id_and_shown_with_its_feeds(command: Command) -> None:
    worker = command.worker("one")
    command.feed("acme/orders")
    command.stream()
    for name in ("one", str(worker.id), str(worker.id)[:8]):
        out = command.ok("worker", "show", name)
        assert "acme/orders" in out
        assert "1 of 10" in out
    assert [f["name"] for f in command.json("worker", "show", "one")["held"]] == ["acme/orders"]
    assert "no worker 'two'; alive are: one" in command.refused("worker", "show", "two")


def test_a_lost_worker_is_listed_with_how_it_was_lost_and_nothing_else(command: Command) -> None:
    lost = command.worker("one")
    command.worker("two")
    command.store.workers.report_loss(
        lost.id, Loss("killed", "by a signal, or by its own code without a word")
    )
    command.store.workers.leave(lost.id)
    command.clock.advance(60)
    assert "killed" not in command.ok("worker", "list")
    listed = command.ok("worker", "list", "--all").splitlines()
    assert listed[1].split()[:2] == ["one", "gone"]
    assert listed[1].endswith(" killed: by a signal, or by its own code without a word")
    rows = {row["name"]: row for row in command.json("worker", "list", "--all")}
    assert rows["one"]["loss"].startswith("killed: ")
    assert rows["one"]["because"] is None
    assert rows["two"]["loss"] is None


def test_a_worker_is_shown_with_its_job_slots(command: Command) -> None:
    new = NewWorker(uuid4(), "one", "node.one", 10, "host", 4711, "0.1.0", job_slots=3)
    command.store.workers.register(new, ttl_s=1e6)
    assert "job slots     3" in command.ok("worker", "show", "one")
    assert command.json("worker", "list")[0]["job_slots"] == 3


def test_no_workers_says_what_to_do(command: Command) -> None:
    assert "celery -A feedq worker" in command.ok("worker", "list")


# -- status ------------------------------------------------------------------------------------------


def test_a_healthy_fleet_has_no_warnings(command: Command) -> None:
    command.worker("one")
    command.worker("two")
    command.feed("a")
    command.feed("b")
    command.stream()
    command.fleet = led(command.clock)
    document = command.json("status")
    assert document["warnings"] == []
    assert document["feeds"]["by_status"]["streaming"] == 2
    assert document["feeds"]["records_total"] == 2_000
    assert (document["workers"]["spread"], document["workers"]["capacity"]) == ([1, 1], 20)
    assert (document["beat"]["pid"], document["reconcile"]["last_pass_age_s"]) == (99, 1.0)
    out = command.ok("status")
    for expected in ("2: 2 streaming", "2 serving\n", "2 of 20 places taken (10 %), 1 to 1", "host:99"):
        assert expected in out


def test_capacity_that_leaves_no_room_for_a_lost_worker_is_warned_of(command: Command) -> None:
    command.worker("one", capacity=2)
    command.worker("two", capacity=2)
    for name in "abc":
        command.feed(name)
    command.stream()
    found = warnings(command)["capacity"]
    assert "when the largest worker dies, only 2 are left and 1 feed cannot run" in found
    assert "1 feed cannot run" in command.ok("status")


def test_too_little_capacity_is_said(command: Command) -> None:
    command.worker("one", capacity=1)
    for name in "abc":
        command.feed(name)
    command.stream()
    found = warnings(command)
    assert "2 cannot run" in found["capacity"]
    assert found["feeds"].startswith("2 waiting (no_capacity): ")


def test_paused_and_failed_feeds_want_no_place(command: Command) -> None:
    command.worker("one", capacity=1)
    command.worker("two", capacity=1)
    command.feed("a")
    command.stream()
    command.feed("b", target_state=TargetState.PAUSED)
    command.reconcile()
    assert command.json("status")["feeds"]["wanted"] == 1
    assert warnings(command) == {}


def test_troubled_feeds_are_named_with_their_error(command: Command) -> None:
    worker = command.worker("one")
    for position in range(7):
        command.feed(f"f{position}")
    command.stream()
    for position in range(6):
        command.release(f"f{position}", Reason.FAILED, error="bad option at tcp://me:hunter2@h")
    command.report(worker.id, 7, 1, stalled=True)
    details = [w["detail"] for w in command.json("status")["warnings"] if w["name"] == "feeds"]
    assert details[0].startswith("6 failed: f0 (bad option at tcp://me:***@h), f1")
    assert details[0].endswith("and 1 more")
    assert details[1] == "1 stalled: f6"


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


def test_an_empty_installation_has_a_status(command: Command) -> None:
    assert warnings(command)["workers"].startswith("no active worker")
    assert "0" in command.ok("status")


def test_a_database_that_is_away_is_one_line(command: Command) -> None:
    command.store.go_away()
    error = command.refused("status", status=1)
    assert error.startswith("Error: control database")
    assert error.count("\n") == 1


# -- top ---------------------------------------------------------------------------------------------


def test_top_prints_a_line_a_look_without_a_terminal(command: Command) -> None:
    command.worker("one")
    command.feed("a")
    command.stream()
    lines = command.ok("top", "--count", "2", "--interval", "0.1").splitlines()
    assert lines[0] == "00:01:00 1 feeds (1 streaming), workers: 1 serving (1/10), 0 records/s"
    assert len(lines) == 2


def test_top_counts_records_a_second(command: Command) -> None:
    worker = command.worker("one")
    command.feed("a")
    command.stream()

    clock = command.clock

    def pass_five_seconds() -> None:
        clock.advance(5)
        command.report(worker.id, 1, 1, records=50)

    command.during_waits(pass_five_seconds)
    first, second = command.ok("top", "--count", "2", "--interval", "0.1", "--json").splitlines()
    assert orjson.loads(first)["records_per_s"] == 0
    assert orjson.loads(second)["records_per_s"] == 10
    assert orjson.loads(second)["feeds"][0]["name"] == "a"


def test_top_evens_out_reports_that_come_in_bursts(command: Command) -> None:
    worker = command.worker("one")
    command.feed("a")
    command.stream()
    clock, looks = command.clock, []

    def report_every_other_second() -> None:
        clock.advance(1)
        looks.append(1)
        if len(looks) % 2:
            command.report(worker.id, 1, 1, records=20)

    command.during_waits(report_every_other_second)
    lines = command.ok("top", "--count", "8", "--interval", "0.1", "--json").splitlines()
    rates = [orjson.loads(line)["records_per_s"] for line in lines]
    assert all(6 <= rate <= 14 for rate in rates[5:]), rates


# -- connectors and the root ---------------------------------------------------------------------------


def test_connectors_show_their_options(command: Command) -> None:
    out = command.ok("connectors")
    assert "tcp: " in out
    assert "  idle_timeout_s  " in out
    assert command.ok("connectors", "tcp") in out
    assert "url" in command.json("connectors")["tcp"]["required"]
    assert "unknown connector 'tpc'" in command.refused("connectors", "tpc")


def test_the_version_is_told(command: Command) -> None:
    assert command.ok("--version").startswith("feedq, version ")


# -- feeds that fare badly, and workers that stand still ---------------------------------------------


def test_a_worker_that_stands_still_is_said_by_every_view_and_none_of_its_feeds_streams(
    command: Command,
) -> None:
    worker = command.worker("one")
    command.feed("acme/orders")
    command.stream()
    assert command.json("feed", "list")[0]["status"] == "streaming"
    command.store.workers.heartbeat(worker.id, Load(loop_lag_s=12.0, sinks_down=("lake",)), ttl_s=1e6)
    said = "has stood still for 12 s"
    (row,) = command.json("feed", "list")
    assert (row["status"], row["because"]) == ("stalled", f"its worker one {said}")
    assert f"stalled  one         1    1,000  123.5 kB  0.0s  its worker one {said}" in command.ok(
        "feed", "list"
    )
    assert f"why            its worker one {said}; none of its feeds moves" in command.ok(
        "feed", "show", "acme/orders"
    )
    (listed,) = command.json("worker", "list")
    assert (listed["because"], listed["sinks_down"]) == (said, ["lake"])
    assert f"{said}; cannot write to sink lake" in command.ok("worker", "list")
    assert f"why           {said}; cannot write to sink lake" in command.ok("worker", "show", "one")
    found = {w["name"]: (w["level"], w["detail"]) for w in command.json("status")["warnings"]}
    assert found["loops"] == ("FAIL", f"one {said}, and so have its 1 feed")
    assert found["feeds"] == ("warn", f"1 stalled: acme/orders (its worker one {said})")
    assert "1 feeds (1 stalled)" in command.ok("top", "--count", "1")


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


def test_failures_and_dead_letters_are_shown_with_a_feed(command: Command) -> None:
    worker = command.worker("one")
    command.feed("acme/orders")
    command.stream()
    lease = command.view("acme/orders").lease
    failing: dict[str, Any] = {"records": 0, "attempts": 4, "failures": 4, "error": "no route"}
    refused: dict[str, Any] = {"dead_letters": 2, "dead_letter_error": "too long"}
    command.report(worker.id, lease.feed_id, lease.epoch, **failing, **refused)
    out = command.ok("feed", "show", "acme/orders")
    assert "status          failing" in out
    assert "failures        4 in a row, with nothing landed since" in out
    assert "latest refused  too long (2026-01-01 00:01:00Z, 0.0s ago)" in out


def test_an_error_keeps_its_lines_and_steers_nothing() -> None:
    assert said("two \x1b[2Jlines\nof an error\u202e") == "two \\x1b[2Jlines\nof an error\\u202e"
