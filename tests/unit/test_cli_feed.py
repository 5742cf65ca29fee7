"""`feedq feed`: what each command does to a feed, and what it refuses."""

from __future__ import annotations

import pytest

from feedq.core.model import Reason, TargetState
from tests.unit.command import URL, Command


@pytest.fixture
def command() -> Command:
    return Command()


def test_what_does_not_exist_is_named(command: Command) -> None:
    for verb in ("show", "pause", "resume", "restart", "remove"):
        assert "no feed named 'nobody'" in command.refused("feed", verb, "nobody")


# -- pause, resume, restart, remove ------------------------------------------------------------------


def test_pause_and_resume_set_the_target(command: Command) -> None:
    command.feed("a")
    command.feed("b")
    assert command.ok("feed", "pause", "a", "b", "a") == "a paused\nb paused\n"
    assert command.spec("b").target_state is TargetState.PAUSED
    assert command.json("feed", "resume", "a") == [{"name": "a", "result": "resumed"}]
    assert command.spec("a").target_state is TargetState.RUNNING


def test_several_feeds_are_touched_all_or_none(command: Command) -> None:
    command.feed("a")
    command.refused("feed", "pause", "a", "nobody")
    assert command.spec("a").target_state is TargetState.RUNNING


def test_restart_bumps_the_generation(command: Command) -> None:
    command.feed("a")
    command.ok("feed", "restart", "a")
    assert command.store.feeds.get("a").generation == 2


def test_waiting_ends_when_it_has_happened(command: Command) -> None:
    command.feed("a")
    command.worker("w")
    command.during_waits(command.stream)
    assert command.ok("feed", "restart", "a", "--wait").endswith("a restarted\n")
    assert command.view("a").lease.records_total == 1_000


def test_waiting_in_vain_fails_after_its_timeout(command: Command) -> None:
    command.feed("a")
    error = command.refused("feed", "resume", "a", "--wait", "--timeout", "0", status=1)
    assert error == "Error: a streaming: not within 0 s; it may still happen\n"


def test_remove_asks_first_and_refuses_where_nobody_answers(command: Command) -> None:
    command.feed("a")
    assert "say --yes" in command.refused("feed", "remove", "a", given="y\n")
    assert command.store.feeds.get("a").removed_at is None


def test_remove_waits_until_nothing_is_left(command: Command) -> None:
    command.feed("a")
    command.during_waits(command.reconcile)
    assert command.ok("feed", "remove", "a", "--yes", "--wait").endswith("a removed\n")
    assert command.store.feeds.views() == []


def test_a_feed_being_removed_cannot_be_touched_again(command: Command) -> None:
    command.feed("a")
    command.ok("feed", "remove", "a", "-y")
    assert "is being removed" in command.refused("feed", "remove", "a", "-y")
    assert "is being removed" in command.refused("feed", "set", "a", "weight=2")


# -- list, show ----------------------------------------------------------------------


def test_list_shows_status_and_progress(command: Command) -> None:
    command.feed("acme/orders")
    command.worker("celery@one")
    command.stream()
    header, line = command.ok("feed", "list").splitlines()
    assert header.split() == ["NAME", "STATUS", "WORKER", "EPOCH", "RECORDS", "BYTES", "LAST", "WHY"]
    assert line.split() == ["acme/orders", "streaming", "celery@one", "1", "1,000", "123.5", "kB", "0.0s"]


def test_list_as_json_has_the_columns_of_the_tables(command: Command) -> None:
    command.feed("acme/orders", tenant="acme")
    worker = command.worker("celery@one")
    command.stream()
    (row,) = command.json("feed", "list")
    assert row["name"] == "acme/orders"
    assert (row["status"], row["worker"], row["epoch"]) == ("streaming", "celery@one", 1)
    assert (row["records_total"], row["bytes_total"], row["reason"]) == (1_000, 123_456, None)
    assert (row["tenant"], row["connector"], row["generation"]) == ("acme", "tcp", 1)
    assert (row["target_state"], row["last_error"]) == ("running", None)
    assert row["last_record_at"] is not None
    assert command.json("feed", "show", "acme/orders")["worker_id"] == str(worker.id)


def test_list_filters(command: Command) -> None:
    command.feed("a", tenant="x")
    command.feed("b", tenant="y", target_state=TargetState.PAUSED)
    assert [row["name"] for row in command.json("feed", "list", "--tenant", "x")] == ["a"]
    assert [row["name"] for row in command.json("feed", "list", "--status", "paused")] == ["b"]
    assert command.json("feed", "list", "--worker", "nobody") == []
    command.refused("feed", "list", "--status", "fine")


def test_the_json_flag_is_taken_before_and_after_the_command(command: Command) -> None:
    command.feed("a")
    assert command.ok("--json", "feed", "list") == command.ok("feed", "list", "--json")


def test_a_list_into_a_pipe_cuts_no_name(command: Command) -> None:
    name = "tenant/" + "x" * 190
    command.feed(name)
    assert name in command.ok("feed", "list")


def test_nothing_to_list_says_what_to_do(command: Command) -> None:
    assert "feedq apply" in command.ok("feed", "list")
    assert command.json("feed", "list") == []


def test_a_failed_feed_shows_why_and_cannot_steer_the_terminal(command: Command) -> None:
    command.feed("a")
    command.worker("w")
    command.stream()
    command.release("a", Reason.FAILED, error="tcp://me:hunter2@h refused: \x1b[2J[red]no\nway")
    for out in (command.ok("feed", "list"), command.ok("feed", "show", "a")):
        assert "failed" in out
        assert "hunter2" not in out
        assert r"tcp://me:***@h refused: \x1b[2J[red]no\nway" in out
    assert "hunter2" not in command.ok("feed", "show", "a", "--json")


def test_show_has_everything_with_secrets_as_references(command: Command) -> None:
    source = {"url": URL, "hello": "{token}", "secrets": {"token": "${env:ACME_TOKEN}"}}
    command.feed("acme/orders", tenant="acme", source=source, labels={"region": "eu"})
    command.worker("celery@one")
    command.stream()
    out = command.ok("feed", "show", "acme/orders")
    for expected in (
        *("status", "streaming", "celery@one", "1,000 (123.5 kB)", '{"seq":1}', "region=eu", "acme"),
        *("    token: ${env:ACME_TOKEN}", f"  url: {URL}", "  table: t", "generation"),
    ):
        assert expected in out
    document = command.json("feed", "show", "acme/orders")
    assert document["source"] == source
    assert document["cursor"] == {"seq": 1}


def test_a_cursor_beyond_64_bits_can_be_shown(command: Command) -> None:
    command.feed("a")
    worker = command.worker("w")
    command.stream()
    command.report(worker.id, 1, 1, cursor=2**80)
    assert str(2**80) in command.ok("feed", "show", "a")
    assert str(2**80) in command.ok("feed", "show", "a", "--json")
