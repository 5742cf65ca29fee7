"""What is refused of a declaration, and what tells two of them apart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from feedq.core.differences import ABSENT, Change, OptionChange, difference, plan
from feedq.core.model import FeedSpec, Selector, TargetState, Version
from feedq.core.values import read
from feedq.errors import InvalidInput
from feedq.verbs.manifests import option_problems
from feedq.worker.declared import declared

SPEC = FeedSpec(
    name="acme/orders", connector="tcp", source={"url": "tcp://127.0.0.1:7001"}, sink={"table": "orders"}
)


def with_source(sink: Any = SPEC.sink, **options: object) -> FeedSpec:
    return SPEC.model_copy(update={"source": {**SPEC.source, **options}, "sink": sink})


def untyped(value: object) -> Any:
    """What a file may hold, whatever the types say."""
    return value


def stored(*specs: FeedSpec) -> dict[str, tuple[FeedSpec, Version | None]]:
    return {spec.name: (spec.completed(None), (7, 3)) for spec in specs}


def problems(spec: FeedSpec) -> list[str]:
    found = read(FeedSpec, spec.plain())
    return [what for _, what in found] if isinstance(found, list) else option_problems(found)


def actions(the_plan: list[Change]) -> list[tuple[str, str, Version | None]]:
    return [(change.action.value, change.name, change.version) for change in the_plan]


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        SPEC.model_copy(update={"name": "名前", "tenant": "Übung", "weight": 0.5}),
        SPEC.model_copy(
            update={
                "selector": Selector(required={"region": "eu"}, preferred={"region": "eu", "disk": "ssd"})
            }
        ),
        with_source(hello="{token}", secrets={"token": "${env:ACME_TOKEN}"}),
        with_source(hello="{token}", secrets={"token": "${file:/run/secrets/acme}"}),
        with_source(hello='{"feed": {name}, "from": {cursor}}', cursor="/seq", idle_timeout_s=30),
    ],
)
def test_a_right_declaration_has_no_problems(spec: FeedSpec) -> None:
    assert problems(spec) == []


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (SPEC.model_copy(update={"name": "a b"}), "name: must be printable"),
        (SPEC.model_copy(update={"tenant": "a\nb"}), "tenant: must be printable"),
        (SPEC.model_copy(update={"weight": 0}), "weight: must be a number greater than 0"),
        (SPEC.model_copy(update={"labels": untyped({"a": True})}), "labels.a: must be a string"),
        (
            SPEC.model_copy(update={"selector": Selector(required={"a": "1"}, preferred={"a": "2"})}),
            "selector.preferred.a: contradicts selector.required.a, so no worker can have both",
        ),
        (SPEC.model_copy(update={"connector": "tpc"}), "unknown connector 'tpc'; installed are: "),
        (with_source(colour="red"), "source.colour: unknown option; known are"),
        (SPEC.model_copy(update={"sink": {"table": "t", "colums": {}}}), "sink.colums: unknown option"),
        (with_source(format="text", sink={"table": "t", "columns": {"a": "/a"}}), "sink.columns"),
        (with_source(secrets={"token": "hunter2"}), "source.secrets: 'token' is not a reference"),
        (
            with_source(hello="${env:ACME_TOKEN}"),
            "source.hello: ${env:…} and ${file:…} are allowed only under",
        ),
        (with_source(url="tcp://me:hunter2@h:1"), "source.url: holds a password in a URL; put it under"),
        (with_source(hello="GET http://h/?a=1&password=hunter2"), "source.hello: holds a password"),
        (SPEC.model_copy(update={"sink": {"table": "postgresql://me:hunter2@h/t"}}), "FEEDQ_SINKS__<NAME>"),
        (with_source(hello="a\0b"), "NUL"),
        (with_source(hello="\ud800"), "surrogate"),
        (with_source(idle_timeout_s=2**70), "beyond 64 bits"),
        (with_source(hello="x" * 70_000), "source: too large"),
    ],
)
def test_a_wrong_declaration_is_refused_with_the_option_named(spec: FeedSpec, problem: str) -> None:
    found = problems(spec)
    assert any(problem in line for line in found), found


def test_nesting_is_bounded() -> None:
    deep: object = 1
    for _ in range(10_000):
        deep = [deep]
    assert problems(with_source(hello=deep)) == ["source: nested more than 32 deep"]


@pytest.mark.parametrize(
    ("connector", "source"),
    [
        ("redis", {"url": "redis://h", "streams": ["s"], "username": "me", "password": "hunter2"}),
        ("mqtt", {"url": "mqtt://h", "topics": ["t"], "username": "me", "password": "hunter2"}),
        ("nats", {"url": "nats://h", "stream": "s", "token": "hunter2"}),
        ("sse", {"url": "http://h", "headers": {"Authorization": "Bearer hunter2"}}),
        ("http", {"url": "http://h", "headers": {"x-api-key": "hunter2"}}),
        ("exec", {"command": ["/bin/true"], "env": {"PASSWORD": "hunter2"}}),
    ],
)
def test_a_literal_secret_is_refused_and_one_by_reference_is_not(
    connector: str, source: dict[str, object]
) -> None:
    spec = SPEC.model_copy(update={"connector": connector, "source": source})
    (found,) = problems(spec)
    assert "would be stored and shown in plain text; put it under source.secrets as a reference" in found
    assert "hunter2" not in found
    referring = json.loads(json.dumps(source).replace("hunter2", "{it}")) | {"secrets": {"it": "${env:IT}"}}
    assert problems(spec.model_copy(update={"source": referring})) == []
    empty = json.loads(json.dumps(source).replace("hunter2", "").replace("Bearer ", ""))
    assert problems(spec.model_copy(update={"source": empty})) == []


def test_what_is_only_called_like_a_secret_is_none() -> None:
    sink = {"table": "t", "columns": {"token": "/token", "password": "/a"}}
    source = {**SPEC.source, "format": "csv", "csv": {"fields": ["token", "a", "password"]}}
    assert (
        problems(SPEC.model_copy(update={"source": source, "sink": {**sink, "columns": {"token": "/token"}}}))
        == []
    )
    assert problems(SPEC.model_copy(update={"sink": sink})) == []


def test_no_message_repeats_a_secret() -> None:
    spec = with_source(
        secrets={"token": "hunter2"},
        url="tcp://me:hunter2@h:1",
        hello="x://a:hunter2@b",
        colour="hunter2",
        sink={"table": "t", "name": "postgresql://me:hunter2@h"},
    )
    assert len(problems(spec)) > 3
    assert "hunter2" not in str(problems(spec))


# -- plans -------------------------------------------------------------------------------------------


def test_a_plan_adds_changes_removes_and_leaves_alone() -> None:
    same, edited, new = (SPEC.model_copy(update={"name": name}) for name in "abc")
    declared = [same, edited.model_copy(update={"weight": 2.0}), new]
    there = stored(same, edited, SPEC)
    the_plan = plan("feed", declared, there, remove=there)
    assert actions(the_plan) == [
        ("change", "b", (7, 3)),
        ("add", "c", None),
        ("remove", SPEC.name, (7, 3)),
    ]
    assert the_plan[0].options == (OptionChange("weight", 1.0, 2.0),)


def test_a_paused_feed_stays_paused_unless_told_otherwise() -> None:
    there = stored(SPEC.model_copy(update={"target_state": TargetState.PAUSED}))
    assert plan("feed", [SPEC], there) == []
    runs = SPEC.model_copy(update={"target_state": TargetState.RUNNING})
    (change,) = plan("feed", [runs], there)
    assert change.options == (OptionChange("target_state", "paused", "running"),)
    (change,) = plan("feed", [SPEC.model_copy(update={"weight": 2.0})], there)
    assert change.spec == SPEC.model_copy(update={"weight": 2.0, "target_state": TargetState.PAUSED})


def test_differences_are_named_by_dotted_option() -> None:
    options = with_source(
        secrets={"token": "${env:A}"},
        hello="hi",
        sink={"table": "orders", "columns": {"a": "/a"}, "key": ("a",)},
    )
    selector = Selector(required={"region": "eu"}, preferred={"disk": "ssd"})
    after = options.model_copy(update={"labels": {"region": "eu"}, "selector": selector})
    changed = {change.option: (change.before, change.after) for change in difference(SPEC, after)}
    assert changed == {
        "labels.region": (ABSENT, "eu"),
        "selector.preferred.disk": (ABSENT, "ssd"),
        "selector.required.region": (ABSENT, "eu"),
        "sink.columns.a": (ABSENT, "/a"),
        "sink.key": (ABSENT, ["a"]),
        "source.hello": (ABSENT, "hi"),
        "source.secrets.token": (ABSENT, "${env:A}"),
    }


def test_numbers_of_equal_value_are_equal_and_booleans_are_no_numbers() -> None:
    assert difference(with_source(idle_timeout_s=30), with_source(idle_timeout_s=30.0)) == ()
    assert difference(with_source(verify=1), with_source(verify=True)) != ()


def test_names_with_dots_are_told_apart() -> None:
    assert (
        difference(
            SPEC.model_copy(update={"source": {"a.b": 1}}),
            SPEC.model_copy(update={"source": {"a": {"b": 1}}}),
        )
        != ()
    )


def _spec(number: int, **source: object) -> FeedSpec:
    return FeedSpec(
        name=f"f/{number}",
        connector="tcp",
        source={"url": "tcp://127.0.0.1:1", **source},
        sink={"table": "t"},
        tenant=f"t{number}",
    )


def test_equal_declarations_are_kept_once() -> None:
    assert declared(_spec(1, cursor="/seq")) is declared(_spec(2, cursor="/seq"))


def test_a_wrong_declaration_is_refused_every_time() -> None:
    for _ in range(2):
        with pytest.raises(InvalidInput, match="unknown option"):
            declared(_spec(1, curser="/seq"))
