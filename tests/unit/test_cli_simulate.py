"""`feedq simulate` in this process: tables, JSON, charts, checks, and what is said of mistakes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.unit.command import Command

SMALL = ("simulate", "--feeds", "60", "--workers", "3", "--capacity", "30")
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "simulate.md"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def command() -> Command:
    return Command()


def test_without_events_there_are_a_crash_a_join_and_a_deploy(command: Command) -> None:
    said = command.ok(*SMALL)
    assert re.findall(r"^ *(?:\d+s)  (\w+)", said, re.MULTILINE) == ["start", "kill", "join", "deploy"]
    assert "60 feeds on 3 workers" in said


def test_the_page_shows_what_the_command_prints(command: Command) -> None:
    shown = re.findall(r"```sh\n([^`]+)```\n\n```\n([^`]+)```", PAGE.read_text())
    assert len(shown) == 3
    for commands, output in shown:
        ran = [command.run(*shlex.split(line)[1:]) for line in commands.splitlines()]
        printed = [" ".join(line.split()) for done in ran for line in done.output.splitlines()]
        rows = [" ".join(line.split()) for line in output.splitlines()]
        assert len(rows) >= 2
        for row in rows:
            assert any(line.startswith(row) for line in printed), row


def test_json_has_all_of_it(command: Command) -> None:
    document = command.json(*SMALL, "--event", "30s kill 1", "--for", "45s")
    assert [phase["event"] for phase in document["phases"]] == ["start", "kill 1"]
    assert document["total"]["moved"] == document["phases"][1]["moved"] == 20
    assert document["phases"][1]["spread_after"] == [30, 30]
    assert document["duration_s"] == 45


def test_a_scenario_from_a_file_and_from_standard_input(command: Command, tmp_path: Path) -> None:
    text = "feeds: {count: 40}\nworkers: {count: 2}\nevents: [10s kill 1]\n"
    (tmp_path / "plan.yaml").write_text(text)
    from_file = command.json("simulate", "-f", str(tmp_path / "plan.yaml"))
    assert from_file["total"]["moved"] == 20
    assert command.json("simulate", "-f", "-", given=text) == from_file


def test_settings_may_be_replaced(command: Command) -> None:
    slow = command.json(*SMALL, "--event", "30s freeze 1", "--set", "ttl_s=20")
    assert slow["phases"][1]["gap_median_s"] > 15
    held = command.json(*SMALL, "--event", "30s deploy", "--set", "FEEDQ_RESTART_HOLD_S=20")
    assert held["total"]["moved"] == 0
    free = command.json(*SMALL, "--event", "30s kill 1")
    paced = command.json(*SMALL, "--event", "30s kill 1", "--set", 'host_connects_per_s={"*": 2}')
    assert 2 * paced["total"]["host_connects_per_s"] < free["total"]["host_connects_per_s"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-moves", "19"), "feeds moved 20 times, more than --max-moves 19"),
        (("--max-gap", "0.01"), "'kill 1': a gap of 0."),
        (("--max-unplaced", "0", "--event", "40s kill 1"), "'kill 1': 30 feeds had no place"),
    ],
)
def test_a_plan_that_does_not_hold_ends_with_status_1(
    command: Command, arguments: tuple[str, ...], said: str
) -> None:
    result = command.run(*SMALL, "--event", "30s kill 1", *arguments)
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Gap (median)" in result.stdout


def test_a_plan_that_holds_ends_with_status_0(command: Command) -> None:
    command.ok(*SMALL, "--event", "30s kill 1", "--max-moves", "20", "--max-gap", "5", "--max-unplaced", "0")


def test_feeds_without_a_place_are_warned_of(command: Command) -> None:
    result = command.run(
        "simulate", "--feeds", "60", "--workers", "2", "--capacity", "30", "--event", "9s kill 1"
    )
    assert "Warning: at 69 s, after 'kill 1', feeds had no place: 30 no_capacity" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--event", "sometime kill 1"), "no duration"),
        (("--event", "30s kill worker9"), "no worker 'worker9' is up then; up are: worker1"),
        (("--for", "long"), "no duration"),
        (("--feeds", "-1"), "--feeds"),
        (("--strategy", "random"), "--strategy"),
        (("--set", "ttl_s"), "KEY=VALUE"),
        (("--set", "colour=red"), "no such setting"),
        (("--set", "ttl_s=-1"), "--set ttl_s"),
        (("--set", "ttl_s=1"), "FEEDQ_HEARTBEAT_S"),
        (("--chart", "fleet.png"), "name it fleet.svg"),
        (("-f", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_mistakes_are_told_with_status_2(command: Command, arguments: tuple[str, ...], said: str) -> None:
    assert said in command.refused("simulate", *arguments)


def test_a_scenario_and_options_that_contradict_it_are_refused(command: Command) -> None:
    assert "--feeds, --event: the scenario" in command.refused(
        "simulate", "-f", "-", "--feeds", "3", "--event", "1s kill 1", given="feeds: {count: 4}"
    )


def test_a_chart_that_cannot_be_written_is_an_error(command: Command, tmp_path: Path) -> None:
    assert "cannot be written" in command.refused(
        *SMALL, "--chart", str(tmp_path / "nowhere" / "fleet.svg"), status=1
    )


# -- the chart ---------------------------------------------------------------------------------------


def drawn(command: Command, path: Path, *arguments: str) -> ElementTree.Element:
    command.ok("simulate", "--chart", str(path), *arguments)
    return ElementTree.fromstring(path.read_text())


def words_of(root: ElementTree.Element) -> list[str]:
    return [(text.text or "").replace("\u00a0", " ").strip() for text in root.iter(f"{SVG}text")]


CROWDED = tuple(part for at in range(10, 22) for part in ("--event", f"{at}s join 1"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--feeds", "60"),
        ("--feeds", "600", "--workers", "20"),
        ("--feeds", "0", "--event", "1s kill 1"),
        ("--feeds", "50", *CROWDED, "--for", "1h"),
        ("--feeds", "5", "--event", "100ms kill 1", "--for", "300ms"),
        (
            "--feeds",
            "12345",
            "--hosts",
            "500",
            "--capacity",
            "10000",
            "--event",
            "1s add 1",
            "--for",
            "3s",
        ),
    ],
)
def test_a_chart_has_its_three_parts_whatever_there_is_to_draw(
    command: Command, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    root = drawn(command, tmp_path / "fleet.svg", *arguments)
    assert len(root.findall(f"{SVG}svg")) == 3
    assert {"Feeds on each worker", "Feeds that do not stream", "Connects a second"} <= set(words_of(root))


def test_a_chart_names_workers_and_events(command: Command, tmp_path: Path) -> None:
    arguments = ("--feeds", "60", "--event", "30s kill worker2", "--event", "30500ms join 1")
    words = words_of(drawn(command, tmp_path / "fleet.svg", *arguments))
    # Events close to one another share a place.
    assert {"worker1", "worker2", "worker3", "0s start", "30s kill worker2, 30.5s join 1"} <= set(words)


def test_a_chart_shows_names_as_they_are(command: Command, tmp_path: Path) -> None:
    plan = "{feeds: {count: 3, host: a&b<c>}, events: [9s away a&b<c>]}"
    command.ok("simulate", "-f", "-", "--chart", str(tmp_path / "fleet.svg"), given=plan)
    root = ElementTree.fromstring((tmp_path / "fleet.svg").read_text())
    assert "9s away a&b<c>" in words_of(root)
