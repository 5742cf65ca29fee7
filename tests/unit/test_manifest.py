"""feeds.yaml: what it may say, where it is wrong, and the way back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import isfinite
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from feedq.core.model import FeedSpec, Selector, TargetState
from feedq.core.schedule.spec import ScheduleSpec
from feedq.verbs import documents, manifests
from feedq.verbs.json_schema import manifest_schema
from feedq.verbs.manifests import ENTRIES
from tests.unit.command import Command
from tests.unit.test_manifest_schedules import FULL, keys, names, values, words
from tests.unit.test_manifest_schedules import specs as schedule_specs

DESIGN = r"""
feeds:
  - name: coastguard/ais
    tenant: coastguard
    connector: tcp
    source: {url: "tcp://127.0.0.1:5631", framing: lines, format: text}
    sink: {name: default, table: ais_raw}
    labels: {region: eu}
  - name: acme/orders
    connector: tcp
    source:
      url: "tcp://127.0.0.1:7001"
      hello: '{"feed": {name}, "from": {cursor}}\n'   # sent on connect
      cursor: /seq
      idle_timeout_s: 30
      secrets: {token: "${env:ACME_TOKEN}"}
    sink: {name: default, table: orders, columns: {seq: /seq, at: /ts, payload: ""}, key: [seq]}
    target_state: paused
"""

MINIMAL = "feeds:\n  - {name: a, connector: tcp, sink: {table: t}}\n"


def problems(text: str) -> list[str]:
    return [str(problem) for problem in manifests.parse(text, origin="f.yaml").problems]


def one_problem(text: str) -> str:
    (found,) = problems(text)
    return found


def specs(text: str) -> list[FeedSpec]:
    found = manifests.parse(text, origin="f.yaml")
    assert not found.problems
    return [declaration.spec for declaration in found.feeds]


def test_a_manifest_declares_feeds() -> None:
    ais, orders = specs(DESIGN)
    assert (ais.name, ais.tenant, ais.labels) == ("coastguard/ais", "coastguard", {"region": "eu"})
    assert ais.source == {"url": "tcp://127.0.0.1:5631", "framing": "lines", "format": "text"}
    assert orders.source["hello"] == '{"feed": {name}, "from": {cursor}}\\n'
    assert orders.source["idle_timeout_s"] == 30
    assert orders.sink["columns"] == {"seq": "/seq", "at": "/ts", "payload": ""}
    assert orders.sink["key"] == ["seq"]
    assert orders.target_state is TargetState.PAUSED


def test_a_declaration_knows_its_line_and_whether_it_says_target_state() -> None:
    found = manifests.parse(DESIGN, origin="f.yaml").feeds
    assert [(d.where, d.spec.target_state) for d in found] == [
        ("f.yaml:3", None),
        ("f.yaml:9", TargetState.PAUSED),
    ]


def test_documents_add_up_and_empty_ones_do_not_count() -> None:
    assert [s.name for s in specs(f"---\n{MINIMAL}---\n---\n{MINIMAL.replace('a,', 'b,')}")] == ["a", "b"]
    assert specs("") == []
    assert specs("# nothing yet\n") == []


def test_json_is_read_too_with_tabs_and_surrogate_pairs() -> None:
    text = '{\n\t"feeds": [{"name": "\\ud83d\\ude00", "connector": "tcp", "sink": {"table": "t"}}]\n}'
    assert specs(text)[0].name == "😀"


def test_plain_words_mean_what_they_mean_in_json() -> None:
    text = MINIMAL.replace(
        "sink:", "labels: {a: no, b: on, c: 2026-01-01, d: 1_000, e: '1', f: 12:30:00, g: .inf}, sink:"
    )
    (spec,) = specs(text)
    assert list(spec.labels.values()) == ["no", "on", "2026-01-01", "1_000", "1", "12:30:00", ".inf"]
    (spec,) = specs(
        MINIMAL.replace("sink:", "source: {a: true, b: null, c: 12, d: 1e3, e: -1.5, f: 010}, sink:")
    )
    assert list(spec.source.values()) == [True, None, 12, 1000.0, -1.5, 10]


def test_anchors_save_repetition() -> None:
    text = """
x-defaults: &defaults
  connector: tcp
  sink: {table: t}
feeds:
  - {<<: *defaults, name: a}
  - {<<: *defaults, name: b, connector: other}
"""
    assert [(s.name, s.connector) for s in specs(text)] == [("a", "tcp"), ("b", "other")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("schedules: {}\n" + MINIMAL, "f.yaml:1: schedules: must be a list"),
        ("feed: []\n", "f.yaml:1: unknown key 'feed'; known are feeds"),
        ("- name: a\n", "f.yaml:1: must be a mapping with a list of feeds"),
        ("feeds: [a]\n", "f.yaml:1: a feed must be a mapping"),
        (
            "feeds:\n  - name: a\n    conector: tcp\n    connector: tcp\n    sink: {table: t}\n",
            "f.yaml:3: feed 'a': unknown key 'conector'; known are name, tenant, connector",
        ),
        (MINIMAL.replace("a,", "12,"), "f.yaml:2: feed: name: must be a string; quote it"),
        (
            MINIMAL.replace("tcp,", "tcp, selector: {region: eu},"),
            "selector: unknown key 'region'; write it as {required: {region: eu}, preferred: {disk: ssd}}",
        ),
        (MINIMAL.replace("tcp,", "tcp, target_state: on,"), "target_state: must be one of running, paused"),
        ("feeds:\n  - name: a\n    name: b\n", "f.yaml:3: the key 'name' is given twice"),
        ("feeds:\n  - {[a]: a}\n", "f.yaml:2: a key must be a string"),
        ("feeds:\n  - !!python/object/apply:os.system [id]\n", "f.yaml:2: the tag"),
        ("feeds:\n\t- a\n", "f.yaml:2: invalid YAML"),
        ('{"feeds": [], "feeds": []}', "f.yaml: the key 'feeds' is given twice"),
        ('{"feeds": [{"name": NaN}]}', "f.yaml: NaN is not a JSON value"),
        ('{"feeds": [{}, {"name": "a"}]}', "f.yaml: feed 2: feed 'a': connector: is missing"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, problem: str) -> None:
    found = problems(text)
    assert any(problem in line for line in found), found


def test_all_mistakes_of_all_feeds_are_named_at_once() -> None:
    text = "feeds:\n- {name: a}\n- {name: b, connector: tcp, sink: {table: t}, source: 1}\nx: 1\n"
    found = problems(text)
    assert len(found) == 4
    assert {problem.partition(": ")[0] for problem in found} >= {"f.yaml:2", "f.yaml:3"}


def test_a_feed_declared_twice_is_refused_with_both_places() -> None:
    reading = manifests.Manifest()
    for name in ("one.yaml", "other.yaml"):
        reading.read(MINIMAL, origin=name)
    (problem,) = reading.problems
    assert str(problem) == "other.yaml:2: feed 'a' is already declared at one.yaml:2"


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "- " * 5_000 + "a", "{a: " * 200_000])
def test_deep_nesting_is_refused(text: str) -> None:
    assert "deep" in one_problem(text) or "invalid YAML" in one_problem(text)


def test_an_alias_that_contains_itself_is_refused() -> None:
    assert "contains it" in one_problem("feeds: &a [*a]\n")


def test_aliases_that_explode_are_refused() -> None:
    lines = ["x-0: &x0 [a, a, a, a, a, a, a, a, a, a]"]
    lines += [f"x-{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "aliases expanded" in one_problem("\n".join(lines))
    merges = ["x-0: &x0 {a: 1}"]
    merges += [f"x-{i}: &x{i} {{<<: [{', '.join([f'*x{i - 1}'] * 10)}]}}" for i in range(1, 9)]
    assert "aliases expanded" in one_problem("\n".join(merges))


def test_a_text_that_is_too_long_is_refused() -> None:
    assert "at most" in one_problem("#" * (documents.LENGTH_MAX + 1))


@given(
    name=names,
    options=st.dictionaries(keys, values, max_size=3),
    labels=st.dictionaries(keys, words, max_size=2),
    required=st.dictionaries(keys, words, max_size=2),
    preferred=st.dictionaries(keys, words, max_size=2),
    weight=st.floats(min_value=0.001, max_value=1e6),
    target=st.sampled_from(TargetState),
)
def test_what_is_dumped_reads_back_alike(
    name: str,
    options: dict[str, object],
    labels: dict[str, str],
    required: dict[str, str],
    preferred: dict[str, str],
    weight: float,
    target: TargetState,
) -> None:
    selector = Selector(required=required, preferred=preferred | required)
    spec = FeedSpec(
        name=name,
        connector="tcp",
        source=options,
        sink={"table": name},
        tenant=name,
        labels=labels,
        selector=selector,
        weight=weight,
        target_state=target,
    )
    assert specs(documents.dump({"feeds": [spec.plain()]})) == [spec]


@pytest.mark.parametrize("count", [0, 1, 6, 7, 20])
def test_what_is_dumped_in_parts_is_what_is_dumped_at_once(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "DUMPED_AT_ONCE", 3)
    feeds = [
        FeedSpec(name=f"f{n}", connector="tcp", source={"hello": "a\n- b\n"}, sink={"table": "t"})
        for n in range(count)
    ]
    parts = list(documents.dump_lists({"feeds": (feed.plain() for feed in feeds)}))
    assert len(parts) == max(1, -(-count // 3))
    assert "".join(parts) == documents.dump({"feeds": [feed.plain() for feed in feeds]})
    assert specs("".join(parts)) == feeds


@given(st.text(max_size=200) | st.text(alphabet="feds:- {}[]&*a\n!|>'\"#%", max_size=60))
def test_no_text_makes_the_reader_raise(text: str) -> None:
    found = manifests.parse(text, origin="f.yaml")
    assert all(isfinite(declaration.spec.weight) for declaration in found.feeds)


ROOT = Path(__file__).parents[2]

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

SCHEMA = Draft202012Validator(manifest_schema())

FEED = "name: a, connector: tcp, source: {url: 'tcp://h:1'}, sink: {table: t}"


def complaints(text: str) -> list[str]:
    """What an editor would underline."""
    found = []
    for document in documents.read(text):
        found += [error.message for error in SCHEMA.iter_errors(document.value)]
    return found


def shown_manifests() -> Iterator[tuple[str, str]]:
    """All that stand in examples and the documentation."""
    for path in ROOT.glob("examples/**/*.yaml"):
        yield path.name, path.read_text()
    for page in PAGES:
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            if re.search(r"^(feeds|schedules|queues):", block, re.MULTILINE):
                yield page.name, block


@pytest.mark.usefixtures("control")
def test_it_is_a_schema_and_the_command_prints_it() -> None:
    Draft202012Validator.check_schema(manifest_schema())
    printed = json.loads(Command().ok("schema"))
    assert printed == json.loads(json.dumps(manifest_schema()))


def test_an_editor_shows_what_each_key_is_for() -> None:
    defs = manifest_schema()["$defs"]
    for name in (*ENTRIES, "sink", "tcp", "feeds.Selector"):
        assert [key for key, of in defs[name]["properties"].items() if not of.get("description")] == [], name


def test_every_manifest_of_examples_and_documentation_is_accepted() -> None:
    found = list(shown_manifests())
    assert len(found) > 20
    assert [(name, complaints(text)) for name, text in found if complaints(text)] == []
    assert complaints(FULL) == []


@given(schedule_specs)
def test_whatever_is_exported_is_accepted(spec: ScheduleSpec) -> None:
    assert complaints(documents.dump({"schedules": [spec.plain()]})) == []


@pytest.mark.parametrize(
    "text",
    [
        "feed: []",
        "feeds: [{name: a, connector: tcp}]",
        f"feeds: [{{{FEED}, colour: red}}]",
        f"feeds: [{{{FEED.replace('tcp,', 'tpc,')}}}]",
        f"feeds: [{{{FEED.replace('table', 'tabel')}}}]",
        "schedules: [{name: a, task: t}]",
        "schedules: [{name: a, task: t, every: soon}]",
        "schedules: [{name: a, task: t, every: 1m, overlap: never}]",
        "queues: [{name: a}]",
        "schedules: [{name: a, task: t, every: 1m, exclude: [1]}]",
    ],
)
def test_what_is_broken_is_refused(text: str) -> None:
    assert complaints(text)


@pytest.mark.parametrize(
    ("said", "is_it"),
    [
        ("source: {n: 1, url: u}", True),
        ("source: {url: u, n: 1}", True),
        ("source: {n: true, url: u}", False),
        ("source: {n: 1.0, url: u}", False),
        ("source: {n: 1, url: u}, target_state: paused", True),
        ("source: {n: 1, url: u}, target_state: running", False),
        ("source: {n: 1}", False),
    ],
)
def test_an_entry_with_the_very_words_of_a_feed_that_is_there_stands_for_it(said: str, is_it: bool) -> None:
    there = FeedSpec.valid(
        {
            "name": "a",
            "connector": "tcp",
            "source": {"n": 1, "url": "u"},
            "sink": {"table": "t"},
            "target_state": "paused",
        }
    )
    found = manifests.Manifest(there={"a": there})
    found.read(f"feeds:\n  - {{name: a, connector: tcp, sink: {{table: t}}, {said}}}\n", origin="f.yaml")
    assert not found.problems
    assert (found.feeds[0].spec is there) == is_it
