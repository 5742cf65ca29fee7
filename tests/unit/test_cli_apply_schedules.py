"""`feedq apply` with schedules and queues: planned and made along with feeds."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from feedq.core.schedule.model import Cron, Every, Job, Queue, ScheduleSpec
from tests.unit.command import URL, Command

FEEDS = f"feeds:\n- {{name: f, connector: tcp, source: {{url: '{URL}'}}, sink: {{table: t}}}}\n"
BOTH = """
schedules:
- {name: a, task: t, every: 30s}
- {name: b, task: t, cron: "0 2 * * *", zone: Europe/Berlin, retries: 3}
queues:
- {name: reports, rate_per_s: 2, concurrency: 4}
"""


@pytest.fixture
def command() -> Command:
    return Command()


def names(command: Command) -> list[str]:
    return sorted(command.jobs.schedules.by_name)


def test_apply_makes_schedules_and_queues_along_with_feeds(command: Command) -> None:
    out = command.ok("apply", "-f", "-", given=FEEDS + BOTH)
    assert out.splitlines() == [
        "+ f",
        "+ queue reports",
        "+ schedule a",
        "+ schedule b",
        "4 added, 0 changed, 0 removed, = 0 unchanged",
    ]
    assert command.jobs.schedules.get("b").spec.timing == Cron("0 2 * * *", "Europe/Berlin")
    assert command.jobs.queues.all() == [Queue("reports", 2.0, 1.0, 4)]


def test_applying_again_changes_nothing(command: Command) -> None:
    command.ok("apply", "-f", "-", given=FEEDS + BOTH)
    command.jobs.schedules.calls.clear()
    out = command.ok("apply", "-f", "-", given=FEEDS + BOTH)
    assert out == "0 added, 0 changed, 0 removed, = 4 unchanged\n"
    # One question, however many schedules there are.
    assert command.jobs.schedules.calls == ["specs"]


def test_apply_shows_the_difference_and_prunes(command: Command) -> None:
    command.ok("apply", "-f", "-", given=BOTH)
    text = BOTH.replace("30s", "1m").replace("retries: 3", "retries: {limit: 3, first: 1s}")
    text = text.replace("- {name: reports, rate_per_s: 2, concurrency: 4}", "- {name: other, concurrency: 1}")
    command.jobs.schedules.add(ScheduleSpec("z", Every(60.0), Job("t")))
    out = command.ok("apply", "-f", "-", "--prune", "--yes", given=text)
    assert out.splitlines() == [
        "+ queue other",
        "~ schedule a",
        '    every: "30s" -> "1m"',
        "~ schedule b",
        '    retries.first: (unset) -> "1s"',
        "- schedule z",
        "- queue reports",
        "1 added, 2 changed, 2 removed, = 0 unchanged",
    ]
    assert names(command) == ["a", "b"]
    assert [queue.name for queue in command.jobs.queues.all()] == ["other"]


def test_pruning_asks_with_the_numbers(command: Command) -> None:
    command.ok("apply", "-f", "-", given=FEEDS + BOTH)
    error = command.run("apply", "-f", "-", "--prune", given="schedules: []\nqueues: []\n").stderr
    assert "Remove 2 schedules and 1 queue that the manifests do not declare?" in error
    assert names(command) == ["a", "b"]


def test_what_the_manifests_say_nothing_about_is_not_pruned(command: Command) -> None:
    command.ok("apply", "-f", "-", given=FEEDS + BOTH)
    out = command.ok("apply", "-f", "-", "--prune", "--yes", given=FEEDS)
    assert out == "0 added, 0 changed, 0 removed, = 1 unchanged\n"
    schedules = BOTH.partition("queues:")[0]
    out = command.ok("apply", "-f", "-", "--prune", "--yes", given=schedules)
    assert out == "0 added, 0 changed, 0 removed, = 2 unchanged\n"
    assert [view.feed.name for view in command.store.feeds.views()] == ["f"]
    assert [queue.name for queue in command.jobs.queues.all()] == ["reports"]


def test_a_tenant_limits_pruning_to_feeds(command: Command) -> None:
    command.ok("apply", "-f", "-", given=BOTH)
    command.ok("apply", "-f", "-", "--prune", "--tenant", "x", "--yes", given="feeds: []\nschedules: []\n")
    assert names(command) == ["a", "b"]


def test_a_dry_run_changes_nothing_and_json_says_what_it_would(command: Command) -> None:
    report = command.json("apply", "-f", "-", "--dry-run", given=BOTH)
    assert (report["added"], report["dry_run"]) == (3, True)
    assert report["changes"][1] == {"kind": "schedule", "name": "a", "action": "add", "options": []}
    assert names(command) == []


def test_all_mistakes_of_feeds_and_schedules_are_told_and_nothing_is_applied(command: Command) -> None:
    text = (
        FEEDS
        + "- {name: bad, connector: tpc, sink: {table: t}}\n"
        + "schedules:\n"
        + "- {name: good, task: t, every: 1m}\n"
        + "- {name: worse, task: t, cron: '61 * * * *', zone: Mars}\n"
        + "- {name: shapeless, every: soon}\n"
        + "queues:\n- {name: q, concurrency: 0}\n"
    )
    error = command.refused("apply", "-f", "-", given=text)
    assert error.startswith("Error: 6 mistakes; nothing was applied\n")
    for line in (
        "standard input:3: feed 'bad': unknown connector 'tpc'",
        "standard input:6: schedule 'worse': cron: the minute '61' is wrong",
        "standard input:6: schedule 'worse': zone: 'Mars' is no time zone",
        "standard input:7: schedule 'shapeless': task: is missing",
        "standard input:7: schedule 'shapeless': every: 'soon' is no duration",
        "standard input:9: queue 'q': concurrency: must be a whole number from 1",
    ):
        assert f"  {line}" in error
    assert names(command) == []
    assert command.store.feeds.views() == []


def test_a_secret_among_the_arguments_is_refused_and_not_repeated(command: Command) -> None:
    text = "schedules:\n- {name: a, task: t, every: 1m, kwargs: {db: {password: hunter2}}}\n"
    error = command.refused("apply", "-f", "-", given=text)
    assert "schedule 'a': kwargs.db.password: would be stored and shown" in error
    assert "hunter2" not in error


def test_a_schedule_that_does_not_say_paused_keeps_what_it_has(command: Command) -> None:
    command.ok("apply", "-f", "-", given=BOTH.replace("every: 30s", "every: 30s, paused: true"))
    out = command.ok("apply", "-f", "-", given=BOTH)
    assert out == "0 added, 0 changed, 0 removed, = 3 unchanged\n"
    out = command.ok("apply", "-f", "-", given=BOTH.replace("every: 30s", "every: 30s, paused: false"))
    assert "    paused: true -> (unset)" in out


def of_a_later_release(command: Command, *names: str) -> None:
    """These can no longer be read."""
    for name in names:
        found = command.jobs.schedules.by_name[name]
        command.jobs.schedules.by_name[name] = replace(
            found, unreadable=f"schedule {name!r}: unknown key 'warp'"
        )


def test_one_that_cannot_be_read_is_declared_anew_and_another_left_alone(command: Command) -> None:
    command.ok("apply", "-f", "-", given=BOTH.replace("every: 30s", "every: 30s, paused: true"))
    command.jobs.schedules.add(ScheduleSpec("z", Every(60.0), Job("t")))
    of_a_later_release(command, "a", "z")
    said = ["~ schedule a", "    cannot be read by this release; declared anew"]
    out = command.ok("apply", "-f", "-", "--dry-run", given=BOTH)
    assert out.splitlines() == [*said, "0 added, 1 changed, 0 removed, = 2 unchanged (dry run)"]
    (change,) = command.json("apply", "-f", "-", "--dry-run", given=BOTH)["changes"]
    assert (change["name"], change["action"]) == ("a", "change")
    assert change["note"] == "cannot be read by this release; declared anew"
    out = command.ok("apply", "-f", "-", given=BOTH)
    assert out.splitlines() == [*said, "0 added, 1 changed, 0 removed, = 2 unchanged"]
    a, z = (command.jobs.schedules.by_name[name] for name in "az")
    assert a.unreadable is None
    assert a.spec == ScheduleSpec("a", Every(30.0), Job("t"), paused=True), "what it does not say, it keeps"
    assert z.unreadable is not None


def test_one_that_cannot_be_read_is_pruned_as_any_other(command: Command) -> None:
    command.ok("apply", "-f", "-", given=BOTH)
    of_a_later_release(command, "a")
    out = command.ok("apply", "-f", "-", "--prune", "--yes", given="schedules: []\n")
    assert out.splitlines()[:3] == ["- schedule a", "    cannot be read by this release", "- schedule b"]
    assert names(command) == []


def test_a_plan_that_broke_off_is_finished_by_applying_again(command: Command) -> None:
    command.jobs.go_away_after(1)
    result = command.run("apply", "-f", "-", given=BOTH)
    assert result.exit_code == 1
    said = "2 of 3 were changed before; doing it again changes the rest: control database is away"
    assert said in result.stderr
    command.jobs.go_away_after(99)
    assert command.ok("apply", "-f", "-", given=BOTH).splitlines()[0] == "+ schedule b"
    assert names(command) == ["a", "b"]


def test_pythons_collector_is_on_again_after_reading_whatever_was_read(command: Command) -> None:
    command.ok("apply", "-f", "-", given=BOTH)
    assert gc.isenabled()
    command.refused("apply", "-f", "-", given="schedules: 7")
    assert gc.isenabled()
    gc.disable()
    try:
        command.ok("apply", "-f", "-", "--dry-run", given=BOTH)
        assert not gc.isenabled(), "whoever turned it off wants it so"
    finally:
        gc.enable()
