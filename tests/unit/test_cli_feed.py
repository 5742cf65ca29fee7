"""`feedq feed`: what each command does to a feed, and what it refuses."""

from __future__ import annotations

import pytest

from feedq.cli import options
from feedq.core.model import Reason, Selector, TargetState
from tests.unit.command import URL, Command


@pytest.fixture
def command() -> Command:
    return Command()


# -- add and edit ------------------------------------------------------------------------------------


def test_add_declares_a_feed_from_options(command: Command) -> None:
    out = command.ok(
        *("feed", "add", "acme/orders", "--connector", "tcp", "--tenant", "acme", "--weight", "2"),
        *("-o", f"url={URL}", "-o", "idle_timeout_s=30", "-o", "secrets.token=${env:ACME_TOKEN}"),
        *("-o", 'hello={"a": {token}}', "--sink", "table=orders", "--sink", "columns.seq=/seq"),
        *("--sink", "key=seq", "--label", "region=eu"),
    )
    assert out == "acme/orders added\n"
    spec = command.spec("acme/orders")
    assert spec.source == {
        "url": URL,
        "idle_timeout_s": 30,
        "secrets": {"token": "${env:ACME_TOKEN}"},
        "hello": '{"a": {token}}',
    }
    assert spec.sink == {"table": "orders", "columns": {"seq": "/seq"}, "key": ["seq"]}
    assert (spec.tenant, spec.labels, spec.weight) == ("acme", {"region": "eu"}, 2.0)
    assert spec.target_state is TargetState.RUNNING


def test_add_takes_json_and_options_on_top_of_it(command: Command) -> None:
    command.ok(
        *("feed", "add", "a", "--connector", "tcp", "--source", f'{{"url": "x", "cursor": "/{1}"}}'),
        *("-o", f"url={URL}", "--sink", '{"table": "t"}', "--paused"),
    )
    assert command.spec("a").source == {"url": URL, "cursor": "/1"}
    assert command.spec("a").target_state is TargetState.PAUSED


def test_a_list_option_may_be_json_or_commas(command: Command) -> None:
    for name, key in (("a", "key=x,y"), ("b", 'key=["x", "y"]')):
        columns = ("--sink", "columns.x=/x", "--sink", "columns.y=/y")
        command.ok(
            *("feed", "add", name, "--connector", "tcp", "-o", f"url={URL}", "--sink", "table=t"),
            *(*columns, "--sink", key),
        )
        assert command.spec(name).sink["key"] == ["x", "y"]


@pytest.mark.parametrize(
    ("connector", "assignment", "option", "value"),
    [
        # What may be a text or a list is a text: many sources want JSON to be sent.
        ("tcp", 'hello={"op": "sub"}', "hello", '{"op": "sub"}'),
        ("tcp", 'hello=["sub", "a"]', "hello", '["sub", "a"]'),
        ("tcp", "hello=LOGIN a,b", "hello", "LOGIN a,b"),
        ("tcp", "hello=", "hello", ""),
        ("websocket", 'subscribe={"op": "sub"}', "subscribe", '{"op": "sub"}'),
        ("websocket", 'subscribe=["1", "phx_join", {}]', "subscribe", '["1", "phx_join", {}]'),
        ("websocket", "subprotocols=v2.json,v1.json", "subprotocols", ["v2.json", "v1.json"]),
        ("websocket", 'ignore={"/event": "heartbeat"}', "ignore", [{"/event": "heartbeat"}]),
        ("websocket", "initial_cursor=17", "initial_cursor", 17),
        ("websocket", "initial_cursor=0017", "initial_cursor", "0017"),
        ("websocket", "initial_cursor=true", "initial_cursor", "true"),
        # A list of texts, even if they look like something else.
        ("redis", "streams=1", "streams", ["1"]),
        ("redis", "streams=true,null", "streams", ["true", "null"]),
        ("mqtt", "client_id=17", "client_id", "17"),
        ("sse", "events=null", "events", None),
        # Dots lead into mappings.
        ("tcp", "limits.rows_per_s=10", "limits", {"rows_per_s": 10}),
        ("tcp", "limits.bytes_per_s=null", "limits", {"bytes_per_s": None}),
        ("tcp", "ping.answer={rest}", "ping", {"answer": "{rest}"}),
        ("tcp", "secrets.token=${env:TOKEN}", "secrets", {"token": "${env:TOKEN}"}),
        ("tcp", "csv.fields=time,1", "csv", {"fields": ["time", "1"]}),
        ("tcp", "csv.header=true", "csv", {"header": True}),
        ("tcp", "csv.delimiter=,", "csv", {"delimiter": ","}),
        ("sse", "headers.X-Version=2", "headers", {"X-Version": "2"}),
    ],
)
def test_the_type_of_an_option_says_how_it_is_read(
    connector: str, assignment: str, option: str, value: object
) -> None:
    changed = options.set_options({"connector": connector}, [assignment], below="source.")
    assert changed["source"] == {option: value}


@pytest.mark.parametrize(
    ("assignment", "columns"),
    [
        ("columns.price=/p", {"price": "/p"}),
        ("columns.record=", {"record": ""}),
        ("columns.price.pointer=/p", {"price": {"pointer": "/p"}}),
        ('columns.price={"pointer": "/p"}', {"price": {"pointer": "/p"}}),
        # Anything is a constant: JSON if it can be read as such.
        ("columns.source.value=7", {"source": {"value": 7}}),
        ("columns.source.value=acme", {"source": {"value": "acme"}}),
        ('columns.source.value="7"', {"source": {"value": "7"}}),
        ("columns.source.value=NaN", {"source": {"value": "NaN"}}),
    ],
)
def test_a_column_may_be_given_as_text_or_by_its_parts(assignment: str, columns: object) -> None:
    changed = options.set_options({"connector": "tcp"}, [assignment], below="sink.")
    assert changed["sink"] == {"columns": columns}


def test_a_dot_leads_into_an_option_that_is_null(command: Command) -> None:
    command.feed("a", source={"url": URL, "csv": None, "format": "json"})
    command.ok("feed", "edit", "a", "--set", "source.format=csv", "--set", "source.csv.fields=x,y")
    assert command.spec("a").source == {"url": URL, "format": "csv", "csv": {"fields": ["x", "y"]}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--connector", "tpc"), "unknown connector 'tpc'; installed are: "),
        (("--connector", "tcp", "-o", "url=nonsense"), "feed 'a': source.url: "),
        (("--connector", "tcp", "-o", f"url={URL}", "-o", "colour=red"), "source.colour: unknown option"),
        (("--connector", "tcp", "-o", f"url={URL}", "-o", "idle_timeout_s=x"), "source.idle_timeout_s: "),
        (("--connector", "tcp", "-o", "url"), "-o 'url': write it as KEY=VALUE"),
        (("--connector", "tcp", "--source", "{"), "--source: is no valid JSON"),
        (("--connector", "tcp", "--source", "[]"), "--source: must be a JSON object"),
        (("--connector", "tcp", "-o", f"url={URL}", "-o", "url.x=1"), "'url' is not a mapping"),
        (("--connector", "tcp", "-o", f"url={URL}", "--label", "x"), "--label 'x': write it as KEY=VALUE"),
        (("--connector", "tcp", "-o", "secrets.token=hunter2"), "${env:NAME}"),
        (("--connector", "tcp", "-o", "url=tcp://me:hunter2@h:1"), "holds a password in a URL"),
    ],
)
def test_add_refuses_what_cannot_be_right(command: Command, arguments: tuple[str, ...], message: str) -> None:
    error = command.refused("feed", "add", "a", "--sink", "table=t", *arguments)
    assert error.startswith("Error: ")
    assert message in error
    assert "hunter2" not in error
    assert command.store.feeds.views() == []


def test_add_of_a_name_that_is_taken_fails(command: Command) -> None:
    command.feed("a")
    error = command.refused(
        *("feed", "add", "a", "--connector", "tcp", "-o", f"url={URL}", "--sink", "table=t"), status=1
    )
    assert error == "Error: feed 'a' exists already; `feedq feed edit` changes it\n"


def test_edit_changes_what_is_given_and_keeps_the_rest(command: Command) -> None:
    command.feed("a", labels={"region": "eu"}, source={"url": URL, "hello": "hi"})
    out = command.ok(
        *("feed", "edit", "a", "--set", "source.url=tcp://h:1", "--set", "weight=3", "--set", "sink.table=u"),
        *("--set", "labels.app.kubernetes.io/name=x", "--unset", "source.hello", "--unset", "labels.region"),
    )
    spec = command.spec("a")
    assert (spec.source, spec.sink, spec.weight) == ({"url": "tcp://h:1"}, {"table": "u"}, 3.0)
    assert spec.labels == {"app.kubernetes.io/name": "x"}
    assert f'    source.url: "{URL}" -> "tcp://h:1"\n' in out
    assert '    source.hello: "hi" -> (unset)\n' in out
    assert out.endswith("a edited\n")


def test_a_selector_is_given_and_changed_label_by_label(command: Command) -> None:
    command.ok(
        *("feed", "add", "a", "--connector", "tcp", "-o", f"url={URL}", "--sink", "table=t"),
        *("--require", "region=eu", "--require", "app.kubernetes.io/name=x", "--prefer", "disk=ssd"),
    )
    required = {"region": "eu", "app.kubernetes.io/name": "x"}
    assert command.spec("a").selector == Selector(required=required, preferred={"disk": "ssd"})
    out = command.ok(
        *("feed", "edit", "a", "--set", "selector.required.region=us", "--prefer", "net=10g"),
        *("--unset", "selector.required.app.kubernetes.io/name", "--unset", "selector.preferred.disk"),
        *("--set", "selector.preferred.rack=7"),
    )
    assert '    selector.required.region: "eu" -> "us"\n' in out
    assert '    selector.preferred.disk: "ssd" -> (unset)\n' in out
    assert command.spec("a").selector == Selector(
        required={"region": "us"}, preferred={"net": "10g", "rack": "7"}
    )
    row = command.json("feed", "list")[0]
    assert row["selector"] == {"required": {"region": "us"}, "preferred": {"net": "10g", "rack": "7"}}
    assert command.ok("feed", "export").count("region: us") == 1


@pytest.mark.parametrize("option", ["--require=region=eu", "--weight=2", "--label=a=b"])
def test_an_edit_of_placement_alone_is_an_edit_like_any_other(command: Command, option: str) -> None:
    command.feed("a")
    command.ok("feed", "edit", "a", option)
    assert command.store.feeds.get("a").generation == 2


def test_edit_to_the_same_changes_nothing(command: Command) -> None:
    command.feed("a")
    assert command.ok("feed", "edit", "a", "-o", f"url={URL}") == "a unchanged\n"
    assert command.store.feeds.get("a").generation == 1


def test_edit_replaces_the_whole_source_when_asked(command: Command) -> None:
    command.feed("a", source={"url": URL, "hello": "hi"})
    command.ok("feed", "edit", "a", "--source", '{"url": "tcp://h:2"}')
    assert command.spec("a").source == {"url": "tcp://h:2"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to change"),
        (("--set", "colour=red"), "--set colour: no such option; known are source.…"),
        (("--set", "source=red"), "--set source: no such option"),
        (("--set", "weight=heavy"), "weight: must be a number greater than 0"),
        (("--set", "weight=0"), "weight: must be a number greater than 0"),
        (("--set", "target_state=off"), "target_state: must be one of running, paused"),
        (("--unset", "source.hello"), "--unset source.hello: is not set"),
        (("--unset", "weight"), "only source.…, sink.…, labels.…, selector.required.… and"),
        (("--set", "selector.region=eu"), "--set selector.region: no such option; known are source.…"),
        (("--set", "selector.required.=eu"), "--set selector.required.: no such option"),
        (("--unset", "selector.required.region"), "--unset selector.required.region: is not set"),
        (("--unset", "selector.required"), "--unset selector.required: only source.…"),
        (("--require", "region"), "--require 'region': write it as KEY=VALUE"),
        (
            ("--require", "region=eu", "--prefer", "region=us"),
            "selector.preferred.region: is not what selector.required.region says",
        ),
        (("--unset", "source.url"), "source.url: Field required"),
        (("--set", "source.url="), "source.url"),
    ],
)
def test_edit_refuses_what_cannot_be_right(
    command: Command, arguments: tuple[str, ...], message: str
) -> None:
    command.feed("a")
    before = command.spec("a")
    assert message in command.refused("feed", "edit", "a", *arguments)
    assert command.spec("a") == before


def test_what_does_not_exist_is_named(command: Command) -> None:
    for verb in ("edit", "show", "pause", "resume", "restart", "remove", "export"):
        arguments = ("--set", "weight=2") if verb == "edit" else ()
        assert "no feed named 'nobody'" in command.refused("feed", verb, "nobody", *arguments)


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
    assert "is being removed" in command.refused("feed", "edit", "a", "--set", "weight=2")


# -- list, show, events, export ----------------------------------------------------------------------


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


def test_what_is_exported_applies_without_a_change(command: Command) -> None:
    command.feed("a", labels={"region": "no"}, weight=2.0, tenant="x")
    command.feed("b", target_state=TargetState.PAUSED)
    exported = command.ok("feed", "export")
    report = command.json("apply", "-f", "-", "--prune", given=exported)
    assert (report["unchanged"], report["changes"]) == (2, [])
    assert [f["name"] for f in command.json("feed", "export", "b")["feeds"]] == ["b"]
