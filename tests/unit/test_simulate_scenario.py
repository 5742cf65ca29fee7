"""Scenarios as people write them: events, durations, YAML; and what is said of mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from feedq.errors import InvalidInput
from feedq.simulate import build_scenario, parse_scenario
from feedq.simulate.happening import Verb, parse_duration, parse_happening


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("250ms", 0.25), ("1m30s", 90), ("2h", 7200), ("0", 0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1 s", "1s2", "nan", "inf", "1w", "8760h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|longer"):
        parse_duration(text)


def test_events() -> None:
    kill = parse_happening("60s kill 2")
    assert (kill.at_s, kill.verb, kill.count, kill.names) == (60, Verb.KILL, 2, ())
    named = parse_happening("1m freeze worker1 worker3")
    assert named.names == ("worker1", "worker3")
    deploy = parse_happening("2m deploy by=3 restart=5s pause=1m")
    assert deploy.options == {"by": 3, "restart": 5, "pause": 60}
    assert parse_happening("0 away feeds.example.com").names == ("feeds.example.com",)
    assert parse_happening("5s stop").count == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write it as TIME WHAT"),
        ("kill 1", "no duration"),
        ("60s", "write it as TIME WHAT"),
        ("60s explode", "known are kill, freeze"),
        ("60s start", "known are kill"),
        ("60s kill 0", "no number"),
        ("60s kill 99999999", "no number"),
        ("60s add", "how many feeds"),
        ("60s add some", "no number of feeds"),
        ("60s away", "which host"),
        ("60s deploy 3", "restarts every worker"),
        ("60s deploy speed=3", "known are by=, restart=, pause="),
        ("60s deploy pause=long", "no duration"),
        ("60s kill 1 hard=1", "it takes none"),
        ("60s join 1 capacity=0", "no number"),
    ],
)
def test_what_is_no_event_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_happening(text)


def test_a_scenario_of_groups() -> None:
    text = """
    workers:
      - {count: 2, capacity: 800, labels: {region: eu}}
      - {count: 1}
    feeds:
      - {count: 500, host: feeds.acme.example, tenant: acme, required: {region: eu}}
      - {count: 100, hosts: 10, tenants: 3, weights: mixed}
    events: [60s kill 1, 2m join 1]
    for: 5m
    seed: 7
    """
    scenario = parse_scenario(text, origin="plan.yaml")
    assert scenario.feed_count == 600
    assert scenario.worker_count == 4
    assert (scenario.duration_s, scenario.seed) == (300, 7)
    assert scenario.feeds[0].host_of(3) == "feeds.acme.example"
    assert [scenario.feeds[1].tenant_of(i) for i in range(4)] == ["tenant1", "tenant2", "tenant3", "tenant1"]


def test_the_scenario_of_the_guide_can_be_read() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "howto" / "simulate.md").read_text()
    [text] = re.findall(r"^```yml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    scenario = parse_scenario(text, origin="simulate.md")
    assert (scenario.feed_count, scenario.worker_count) == (2400, 7)


def test_one_group_needs_no_list_and_json_is_yaml() -> None:
    scenario = parse_scenario('{"feeds": {"count": 5}, "workers": {"count": 2}}', origin="plan.json")
    assert (scenario.feed_count, scenario.worker_count) == (
        5,
        3,
    )  # one joins in the events there are by default


def test_a_scenario_lasts_a_minute_longer_than_its_events() -> None:
    assert build_scenario({"events": ["30s kill 1"]}, origin="x").duration_s == 90
    assert (
        build_scenario({"events": ["30s deploy restart=2s pause=3s"]}, origin="x").duration_s == 30 + 15 + 60
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "must be a mapping"),
        ("feeds: {count: -1}", "plan.yaml: feeds.1.count: input should be greater"),
        ("feeds: {number: 1}", "feeds.1.number: extra inputs"),
        ("feds: {}", "feds: extra inputs"),
        ("feeds: [", "plan.yaml: while parsing"),
        ("events: [60s explode]", "plan.yaml: event '60s explode'"),
        ("{events: [60s kill 1], for: 30s}", "comes after the end"),
        ("for: 0s", "for: input should be greater than 0"),
        ("for: soon", "for: 'soon' is no duration"),
        ("events: [60s away mars]", "no feed has the host 'mars'; there are host1"),
        ("feeds: [{count: 2000000}, {count: 1}]", "at most 2000000"),
        ("workers: []", "at least one group"),
        ("feeds: {weight: .nan}", "feeds.1.weight"),
    ],
)
def test_mistakes_are_told(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said.replace("[", r"\[")):
        parse_scenario(text, origin="plan.yaml")
