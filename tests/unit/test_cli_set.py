"""``key=value`` on the command line: how it is read, where it is put, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from feedq.cli.declare import assigned, with_assignments
from feedq.core.model import FeedSpec, Selector
from feedq.core.schedule.spec import NOT_OF_JOB, ScheduleSpec
from feedq.errors import InvalidInput
from feedq.verbs.documents import DocumentError, read_value
from tests.schedules import Keys, schedule_spec
from tests.unit.command import URL, Command

pytestmark = pytest.mark.usefixtures("control")

DAILY = schedule_spec("s", cron=("@daily",), zone="Europe/Berlin", task="t", kwargs={"a": 1, "b": 2})


def changed(spec: ScheduleSpec, assignments: list[str]) -> ScheduleSpec:
    return with_assignments(spec, assignments)


@pytest.fixture
def command() -> Command:
    return Command()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("true", True),
        ("null", None),
        ("no", "no"),
        ("20s", "20s"),
        ("${env:TOKEN}", "${env:TOKEN}"),
        ('"7"', "7"),
        ('\'{"op": "sub"}\'', '{"op": "sub"}'),
        ("[a, 1]", ["a", 1]),
        ("{a: {b: [1]}}", {"a": {"b": [1]}}),
    ],
)
def test_a_value_is_what_it_would_be_in_a_manifest_and_any_other_text_itself(text: str, value: Any) -> None:
    assert read_value(text) == value


@pytest.mark.parametrize("text", ["{a", "[1] 2", '"a', "{a: !!python/name:os 1}", "{a: 1, a: 2}", "[" * 100])
def test_what_is_no_yaml_is_refused(text: str) -> None:
    with pytest.raises(DocumentError):
        read_value(text)


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [
        ("weight=2", "weight", 2),
        ("labels.app.kubernetes.io/name=x", "labels", {"region": "eu", "app.kubernetes.io/name": "x"}),
        ("source.limits.rows_per_s=10", "source", {"url": URL, "csv": None, "limits": {"rows_per_s": 10}}),
        ("source.csv.header=true", "source", {"url": URL, "csv": {"header": True}}),
        ("labels.region=", "labels", {}),
    ],
)
def test_dots_lead_into_mappings(assignment: str, key: str, value: Any) -> None:
    before: dict[str, Any] = {"source": {"url": URL, "csv": None}, "labels": {"region": "eu"}}
    kept = copy.deepcopy(before)
    assert assigned(before, [assignment], FeedSpec) == kept | {key: value}
    assert before == kept


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("weight", "'weight': write it as KEY=VALUE"),
        ("=2", "'=2': write it as KEY=VALUE"),
        ("source.url.x=1", "source.url.x: 'url' is not a mapping"),
        ("labels.regoin=", "labels.regoin: is not set; did you mean region?"),
        ("weight=", "weight: is not set"),
        ("source.hello={hunter2", "source.hello: invalid YAML"),
    ],
)
def test_an_assignment_that_cannot_be_read_is_named_without_its_value(assignment: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        assigned({"source": {"url": URL}, "labels": {"region": "eu"}}, [assignment], FeedSpec)
    assert str(refused.value).startswith(message)
    assert "hunter2" not in str(refused.value)


def test_a_shorthand_becomes_a_mapping_when_a_key_is_put_into_it() -> None:
    found = assigned({}, ["retries=3", "retries.first=5s"], ScheduleSpec)
    assert found == {"retries": {"limit": 3, "first": "5s"}}


def test_another_kind_of_timing_takes_the_place_of_the_one_before() -> None:
    assert said(DAILY, "cron=0 3 * * *") == {"cron": "0 3 * * *", "zone": "Europe/Berlin"}
    hourly = changed(DAILY, ["every=1h", "anchor=2026-01-01T00:15"])
    quarter_past = {"anchor": "2025-12-31T23:15:00Z"}  # in the zone it had
    assert said(hourly) == {"every": "1h"} | quarter_past
    assert said(hourly, "every=2h") == {"every": "2h"} | quarter_past
    assert said(hourly, "cron=@daily") == {"cron": "@daily"}
    assert said(DAILY, "at=2026-12-01T08:00") == {"at": "2026-12-01T07:00:00Z"}
    excluded = changed(DAILY, ["exclude=[2026-12-25, 2026-12-31]"])
    days = {"exclude": ["2026-12-25", "2026-12-31"], "zone": "Europe/Berlin"}
    assert said(excluded, "every=1h") == {"every": "1h"} | days
    with pytest.raises(InvalidInput, match="cron and every cannot be combined"):
        changed(DAILY, ["cron=@daily", "every=1h"])


def said(spec: ScheduleSpec, *assignments: str) -> Keys:
    """What a schedule says of when, once these keys are set."""
    return {key: value for key, value in changed(spec, [*assignments]).plain().items() if key in NOT_OF_JOB}


def test_what_is_not_set_is_kept() -> None:
    found = changed(DAILY, ["kwargs.b=3", "retries=3", "retries.first=5s", "timeout=none"])
    assert found.kwargs == {"a": 1, "b": 3}
    assert (found.retries.limit, found.retries.first) == (3, 5.0)
    assert (found.cron, found.timeout) == (DAILY.cron, None)
    again = changed(found, ["timeout=", "retries=", "kwargs.b=2"])
    assert again == DAILY


# -- feeds -------------------------------------------------------------------------------------------


def test_set_changes_what_is_given_and_keeps_the_rest(command: Command) -> None:
    command.feed("a", labels={"region": "eu"}, source={"url": URL, "hello": "hi"})
    out = command.ok(
        *("feed", "set", "a", "source.url=tcp://h:1", "weight=3", "sink.table=u", "tenant=acme"),
        *("source.hello=", "labels.region=", "labels.team=x", "selector.required.gpu=yes"),
        "expect.max_silence=20s",
    )
    spec = command.spec("a")
    assert (spec.source, spec.sink, spec.weight) == ({"url": "tcp://h:1"}, {"table": "u"}, 3.0)
    assert (spec.labels, spec.tenant, spec.selector) == (
        {"team": "x"},
        "acme",
        Selector(required={"gpu": "yes"}),
    )
    assert spec.expect == {"max_silence": 20.0}
    assert f'    source.url: "{URL}" -> "tcp://h:1"\n' in out
    assert '    source.hello: "hi" -> (unset)\n' in out
    assert out.endswith("a changed\n")
    assert command.ok("feed", "set", "a", "weight=3") == "a unchanged\n"
    assert command.store.feeds.get("a").generation == 2


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("wieght=2", "did you mean weight?"),
        ("expect.max_silense=20s", "max_silense"),
        ("weight=heavy", "weight: must be a number greater than 0"),
        ("source.url=", "source.url: Field required"),
        ("source.secrets.token=hunter2", "${env:NAME}"),
        ("name=c", "cannot be renamed"),
        ("resume={cursor: 1}", "resume: only for new feeds"),
        ("selector={required: {a: x}, preferred: {a: y}}", "contradicts selector.required.a"),
    ],
)
def test_none_is_changed_when_one_would_be_wrong(command: Command, assignment: str, message: str) -> None:
    command.feed("acme/b")
    error = command.refused("feed", "set", "acme/b", "weight=2", assignment)
    assert message in error
    assert "hunter2" not in error
    assert command.store.feeds.get("acme/b").generation == 1


# -- timings to try ----------------------------------------------------------------------------------


def test_a_timing_is_tried_in_utc_and_on_the_clock_of_its_zone(command: Command) -> None:
    tried = ("schedule", "next", "cron=30 2 * * *", "zone=Europe/Berlin", "--count", "3")
    ticks = command.json(*tried, "--from", "2026-03-28")["ticks"]
    assert [tick["tick_at"][:16] for tick in ticks] == [
        "2026-03-28T01:30",
        "2026-03-29T01:00",
        "2026-03-30T00:30",
    ]
    assert ticks[1]["local"] == "2026-03-29T03:00:00+02:00"
    assert command.ok(*tried, "--from", "2026-10-24").splitlines()[:3] == [
        "example: cron 30 2 * * * Europe/Berlin",
        "UTC                   EUROPE/BERLIN",
        "2026-10-24 00:30:00Z  Sat 2026-10-24 02:30:00 +02:00",
    ]
    assert "no ticks left" in command.ok("schedule", "next", "at=2020-01-01")
