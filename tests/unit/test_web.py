"""Parts of the pages: addresses, dialogs, charts, schedules, lines of a feed, and who may ask for a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree

import flower
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pydantic import ValidationError
from structlog.testing import capture_logs

from feedq.api.authentication import is_allowed, is_foreign
from feedq.control.store.landed_counts import LandedBucket, Span
from feedq.core.model import ANYWHERE, Event, Feed, FeedSpec, FeedView, Lease, LeaseState, Selector, Status
from feedq.core.passwords import masked
from feedq.core.roles import AccessRole, Caller
from feedq.core.schedule.model import Run, RunKind, RunState, Schedule, ScheduleState, ScheduleView
from feedq.core.schedule.spec import ScheduleSpec
from feedq.core.selection import Selection, SelectionOrder
from feedq.errors import InvalidInput
from feedq.settings import Settings
from feedq.telemetry.logs import LogEvent
from feedq.verbs.details import (
    Fact,
    declaration_text,
    event_detail,
    feed_lines,
    schedule_lines,
    shown,
    shown_facts,
)
from feedq.verbs.feeds import FeedDocument, list_feeds
from feedq.verbs.registry import OF, PAGE_MAX
from feedq.verbs.schedules import ScheduleDocument, schedule_row
from feedq.verbs.wording import seconds, tick_of, took_s, why
from feedq.web.buttons import ASKS, bulk_buttons, declared_in
from feedq.web.charts import HEIGHT, LEAST, landed_charts
from feedq.web.guard import caller_of, why_refused, why_unsafe
from feedq.web.pages import address_of, arguments_of
from feedq.web.site import OWN_TEMPLATES, OverlayLoader
from tests.fakes.clock import NEW_YEAR
from tests.fakes.sink import IDENTITY
from tests.fakes.standing import standing as standing_of
from tests.schedules import schedule_spec

VERB = OF[list_feeds]

USUAL = {"limit": 50}

words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60)

selections = st.builds(
    Selection,
    tenant=st.none() | words,
    labels=st.sampled_from([{}, {"team": "till"}, {"team": "till", "region": "eu=1"}]),
    worker=st.none() | words,
    statuses=st.lists(st.sampled_from(Status), unique=True).map(tuple),
    connector=st.none() | words,
    match=st.none() | words,
    failing=st.booleans(),
    unmet=st.booleans(),
    dead_letters=st.booleans(),
)

asked = st.builds(
    VERB.arguments,
    select=selections,
    text=words | st.just(""),
    order=st.sampled_from(SelectionOrder),
    reverse=st.booleans(),
    limit=st.integers(1, PAGE_MAX),
    cursor=st.none() | words,
)


def parse(text: str) -> Any:
    return arguments_of(VERB, text.removeprefix("?"), USUAL, own=("live",))


@given(asked)
def test_an_address_asks_for_what_it_was_made_from(wanted: Any) -> None:
    assert parse(address_of(wanted, USUAL, cursor=wanted.cursor)) == wanted


@given(asked, st.sampled_from(Status))
def test_another_filter_begins_at_the_first_page(wanted: Any, status: Status) -> None:
    select = Selection(statuses=(status,))
    found = parse(address_of(wanted, USUAL, select=select))
    assert found == structs.replace(wanted, select=select, cursor=None)


def test_an_address_without_arguments_asks_for_all_feeds_by_name() -> None:
    assert parse("") == parse("live=1&text=&statuses=&order=") == VERB.arguments(limit=50)
    assert address_of(VERB.arguments(limit=50), USUAL) == "?"


def test_buttons_for_all_feeds_of_a_list_need_a_filter() -> None:
    every, acme = Selection(removing=True), Selection(tenant="acme")
    assert {one.refused for one in bulk_buttons(every, "", 6)} == {
        "This would be all feeds; set a filter first."
    }
    assert {
        (one.refused, one.arguments["tenant"], len(one.arguments)) for one in bulk_buttons(acme, "", 6)
    } == {("", "acme", 1)}
    assert {one.refused for one in bulk_buttons(acme, "", 0)} == {"No feed matches."}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("statuses=running", "running"),
        ("order=password", "password"),
        ("reverse=up", "reverse"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=1_0", "limit"),
        ("labels=team", "labels: 'team' must be written as key=value"),
        ("serch=x", "unknown argument 'serch'"),
    ],
)
def test_a_wrong_argument_is_named(text: str, named: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse(text)
    assert named in str(raised.value)


ROLES = {"ada": "operator", "ben": "operator:acme", "eve@example.com": "admin"}


@pytest.mark.parametrize(
    ("user", "roles", "role", "tenant"),
    [
        ("ada", ROLES, AccessRole.OPERATOR, None),
        ("ben", ROLES, AccessRole.OPERATOR, "acme"),
        ("eve@example.com", ROLES, AccessRole.ADMIN, None),
        ("mallory", ROLES, AccessRole.VIEWER, None),
        ("", ROLES, AccessRole.VIEWER, None),
        ("mallory", ROLES | {"*": "viewer:acme"}, AccessRole.VIEWER, "acme"),
    ],
)
def test_a_user_has_the_role_that_is_said_and_everybody_else_looks(
    user: str, roles: dict[str, str], role: AccessRole, tenant: str | None
) -> None:
    assert caller_of(user, roles) == Caller(f"{user or 'somebody'} in Flower", role, tenant)


def test_a_role_that_there_is_not_is_refused_at_the_start() -> None:
    with pytest.raises(ValidationError, match="'ada': 'root' is not a role such as viewer, operator"):
        Settings(flower_roles={"ada": "root"})


def test_what_is_typed_into_a_dialog_is_a_manifest_of_one_feed() -> None:
    typed = "feeds:\n  - name: acme/orders\n    connector: tcp  # as ever\n"
    assert declared_in(typed, "acme/orders") == {"name": "acme/orders", "connector": "tcp"}
    other = typed.replace("orders", "others")
    for wrong, said in (
        *(("feeds: [", "line 2: "), (typed + "  - name: b\n", "one feed"), ("", "one feed")),
        (other, "name: must stay 'acme/orders'"),
    ):
        with pytest.raises(InvalidInput, match=said):
            declared_in(wrong, "acme/orders")


@pytest.mark.parametrize(
    ("kind", "role"),
    [("trigger", AccessRole.OPERATOR), ("cancel-run", AccessRole.OPERATOR), ("pause", AccessRole.VIEWER)],
)
def test_where_nobody_was_given_a_role_whoever_is_logged_in_may_see_to_schedules(
    kind: str, role: AccessRole
) -> None:
    assert caller_of("ada", {}, ASKS[kind].verb.path).role is role
    assert caller_of("ada", {"ben": "operator"}, ASKS[kind].verb.path).role is AccessRole.VIEWER


@pytest.mark.parametrize("kind", ASKS)
def test_what_a_button_asks_for_are_arguments_of_its_verb(kind: str) -> None:
    ask = ASKS[kind]
    named = {*ask.given, *(one.name for one in ask.fields if not one.is_manifest)}
    assert named <= set(ask.verb.arguments.__struct_fields__)
    assert ask.verb.role is AccessRole.OPERATOR


NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)

SVG = "{http://www.w3.org/2000/svg}"


def rects(svg: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')).findall(
        f"{SVG}rect"
    )


def bucket(minute: int, rate: float | None) -> LandedBucket:
    at = NOON + timedelta(minutes=minute)
    return LandedBucket(at) if rate is None else LandedBucket(at, int(60 * rate), rate, 0, None)


def test_a_bar_is_as_high_as_its_part_of_the_highest_and_a_gap_is_none() -> None:
    charts = landed_charts(
        [bucket(0, 10.0), bucket(1, None), bucket(2, 5.0), bucket(3, 0.001), bucket(4, 0.0)], Span.HOUR
    )
    found = [(r.get("class"), float(r.get("height", ""))) for r in rects(charts[0].svg)]
    assert found == [
        ("feedq-bar", HEIGHT),
        ("feedq-gap", HEIGHT),
        ("feedq-bar", HEIGHT / 2),
        ("feedq-bar", LEAST),
        ("feedq-bar", 0),
    ]
    assert charts[0].said == "at most 10/s in the last hour, 0/s at its end"
    assert charts[1].said == "no data for the last hour"


NOW = NEW_YEAR

SECRET = "hunter2"  # what must be shown nowhere


def spec(name: str = "acme/rollup", **changes: Any) -> ScheduleSpec:
    job = {"task": "acme.roll_up", "args": [1], "kwargs": {"day": "yesterday", "api_key": SECRET}}
    return schedule_spec(name, cron=("0 2 * * *",), zone="Europe/Berlin", **job | changes)


def schedule(of: ScheduleSpec | None = None, **changes: Any) -> Schedule:
    tick = NOW + timedelta(hours=1)
    made = Schedule(7, of or spec(), ScheduleState.ACTIVE, None, None, 3, tick, tick, 0, NOW, NOW)
    return replace(made, **changes)


def run(**changes: Any) -> Run:
    made = Run(
        id=41,
        schedule="acme/rollup",
        key="2026-01-01T00:00:00Z",
        correlation_id="acme/rollup/2026-01-01T00:00:00Z",
        kind=RunKind.TICK,
        tick_at=NOW,
        ticks=1,
        due_at=NOW + timedelta(seconds=1),
        state=RunState.SUCCEEDED,
        reason=None,
        attempt=1,
        fence=9,
        worker_id=None,
        worker="w1@host",
        started_at=NOW + timedelta(seconds=1.25),
        deadline_at=None,
        ended_at=NOW + timedelta(seconds=31.25),
        task="tasks.rollup",
        queue="default",
        lag_s=0.25,
    )
    return replace(made, **changes)


# -- words -------------------------------------------------------------------------------------------


def test_a_run_takes_from_its_start_to_its_end() -> None:
    assert took_s(run(), now=NOW + timedelta(days=1)) == 30
    assert [seconds(value) for value in (None, 0.25, 30.0)] == [None, "250 ms", "30s"]


def test_a_run_says_which_tick_it_is() -> None:
    assert tick_of(run()) == "2026-01-01 00:00:00Z"
    assert tick_of(run(kind=RunKind.BACKFILL)) == "2026-01-01 00:00:00Z (backfill)"
    missed = run(state=RunState.MISSED_CATCHUP, ticks=1_000_000, started_at=None)
    assert tick_of(missed) == "1,000,000 ticks from 2026-01-01 00:00:00Z"


@pytest.mark.parametrize(
    "name", ["password", "db_password", "api-key", "apiKey", "Authorization", "client_secret"]
)
def test_arguments_that_are_secrets_by_their_names_are_masked(name: str) -> None:
    given = {"outer": [{name: SECRET, "day": "today"}], name: {"value": SECRET}}
    assert shown(given) == {"outer": [{name: "***", "day": "today"}], name: "***"}


def test_references_and_what_is_no_secret_are_shown_and_passwords_of_urls_are_not() -> None:
    given = {
        "token": "${ACME_TOKEN}",
        "password": None,
        "tokens_max": 5,
        "url": f"https://ada:{SECRET}@example.com/x",
        "list": (1, 2.5, True),
    }
    assert shown(given) == given | {"url": "https://ada:***@example.com/x", "list": [1, 2.5, True]}


def standing(view: ScheduleView) -> list[Fact]:
    found = ScheduleDocument(schedule_row(view), {}, None, {}, [], NOW, NOW, "7.3")
    return schedule_lines(found, now=NOW)


def test_a_schedule_says_where_it_stands() -> None:
    paused = schedule(
        state=ScheduleState.PAUSED,
        pause_reason="3 runs in a row did not succeed",
        paused_until=NOW + timedelta(hours=2),
        next_fire_at=NOW + timedelta(hours=1, seconds=20),
        failures=3,
    )
    lines = dict(standing(ScheduleView(paused, None, 4, 1)))
    assert lines["paused because"] == "3 runs in a row did not succeed"
    assert lines["paused until"] == "2026-01-01 02:00:00Z (in 2h)"
    assert lines["fires"] == "2026-01-01 01:00:20Z (in 60m), with its jitter"
    assert (lines["waiting"], lines["running"], lines["failures"]) == ("4", "1", "3 in a row")
    active = {name for name, text in standing(ScheduleView(schedule(), None, 0, 0)) if text}
    assert not {"paused because", "paused until", "fires"} & active


# -- documents ---------------------------------------------------------------------------------------


HERE = "flower.example.com"

ASKED = {"Host": "localhost:5555"}

EVIL = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}


def options(**given: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"basic_auth": None, "auth": "", "unix_socket": "", "address": ""} | given)


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),
        ({"Sec-Fetch-Site": "same-origin"}, False),
        ({"Sec-Fetch-Site": "same-site"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://flower:5555"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Origin": "http://flower:5555"}, False),
        ({"Origin": "http://flower:8080"}, True),
        ({"Origin": "https://evil.example"}, True),
        ({"Origin": "null"}, True),
    ],
)
def test_only_the_page_itself_or_no_browser_may_ask_for_a_change(
    headers: Mapping[str, str], foreign: bool
) -> None:
    assert is_foreign(headers, host="flower:5555") is foreign


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:5555", True),
        ("10.0.0.7", True),
        ("[::1]:5555", True),
        ("localhost:5555", True),
        ("LOCALHOST.", True),
        ("flower.example.com:8080", True),
        ("Flower.Example.com", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("flower.example.com.evil.example", False),
        ("127.0.0.1.evil.example:5555", False),
        ("user@evil.example", False),
        ("[", False),
        (":5555", False),
    ],
)
def test_flower_is_known_by_addresses_and_by_the_names_that_it_was_given(host: str, allowed: bool) -> None:
    assert is_allowed(host, {HERE}) is allowed
    assert is_allowed(host, {"*"}) is (host != "[")


@pytest.mark.parametrize("has_login", [False, True])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "ODD"])
def test_only_its_own_pages_under_its_own_name_may_ask_for_a_change(method: str, has_login: bool) -> None:
    def refused(headers: Mapping[str, str]) -> str:
        return why_refused(method, headers, hosts={HERE}, has_login=has_login) or ""

    assert refused(ASKED) == refused({"Host": HERE}) == refused({}) == ""
    assert refused(ASKED | {"Origin": "http://localhost:5555", "Sec-Fetch-Site": "same-origin"}) == ""
    assert "pages of other sites" in refused(ASKED | EVIL)
    assert "not known as 'evil.example'" in refused({"Host": "evil.example", "Origin": "http://evil.example"})
    assert "FEEDQ_FLOWER_HOSTS" in refused({"Host": "evil.example"})


def test_without_a_login_a_name_that_flower_does_not_know_reads_nothing_either() -> None:
    asked = {"Host": "evil.example"}
    assert "not known" in str(why_refused("GET", asked, hosts=(), has_login=False))
    assert why_refused("GET", asked, hosts=(), has_login=True) is None
    assert why_refused("GET", ASKED | EVIL, hosts=(), has_login=False) is None, "a link on another page"


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::", "10.0.0.7", "flower.example.com"])
def test_flower_without_a_login_listens_on_this_machine_only(address: str) -> None:
    unsafe = str(why_unsafe(options(address=address)))
    assert address in unsafe
    for said in ("FLOWER_BASIC_AUTH=", "--auth", "--address=127.0.0.1"):
        assert said in unsafe
    assert why_unsafe(options(address=address, basic_auth=["ada:lovelace"])) is None
    assert why_unsafe(options(address=address, auth="ada@example.com")) is None


@pytest.mark.parametrize(
    "where",
    [
        *({"address": address} for address in ("127.0.0.1", "127.8.8.8", "::1", "localhost")),
        {"unix_socket": "/run/flower.sock"},
    ],
    ids=str,
)
def test_flower_that_only_this_machine_reaches_needs_no_login(where: dict[str, str]) -> None:
    assert why_unsafe(options(**where)) is None


FLOWER_TEMPLATES = Path(flower.__file__).with_name("templates")


def test_a_flower_with_another_navigation_goes_without_our_tabs(tmp_path: Path) -> None:
    (tmp_path / "navbar.html").write_text("<nav>other</nav>")
    with capture_logs() as lines:
        rendered = OverlayLoader(str(tmp_path)).load("navbar.html").generate()
    assert rendered == b"<nav>other</nav>"
    assert [line["event"] for line in lines] == [LogEvent.TABS_LEFT_OUT]


def test_no_template_of_ours_hides_one_of_flowers() -> None:
    assert {p.name for p in OWN_TEMPLATES.iterdir()} & {p.name for p in FLOWER_TEMPLATES.iterdir()} == set()


# -- what a feed's page says, line by line -----------------------------------------------------------


def view(lease: Lease, *, selector: Selector = ANYWHERE, **source: object) -> FeedView:
    keys = {"name": "acme/orders", "connector": "tcp", "source": source, "sink": {"table": "orders"}}
    spec = FeedSpec.of(keys | {"labels": {"region": "eu"}, "selector": selector})
    feed = Feed(1, spec, 3, NOW - timedelta(days=1), NOW - timedelta(hours=2), IDENTITY)
    found = standing_of(feed, lease, None, now=NOW)
    return FeedView(feed, lease, "w1@host" if lease.worker_id else None, found.status, found.because)


def document(of: FeedView) -> FeedDocument:
    return FeedDocument(of, None, None, {}, "1.1")


def test_passwords_of_urls_are_masked_wherever_they_got_in() -> None:
    url = "postgresql://u:hunter2@db/x"
    leaky = Lease(1, last_error=f"cannot reach {url}", cursor={"from": url})
    shown = [
        *(text for _, text in shown_facts(feed_lines(document(view(leaky)), now=NOW))),
        declaration_text(masked({"source": {"url": url}})),
        event_detail(Event(NOW, "x", detail={"a": url, "b": [url]})),
    ]
    text = "\n".join(shown)
    assert "hunter2" not in text
    assert text.count("postgresql://u:***@db/x") == 5


def test_a_cursor_beyond_64_bits_is_shown_all_the_same() -> None:
    assert dict(feed_lines(document(view(Lease(1, cursor=2**70))), now=NOW))["cursor"] == str(2**70)


def test_dead_letters_stand_beside_what_holds_a_feed_up_with_their_reason_when_nothing_does() -> None:
    refused: dict[str, Any] = {
        "dead_letters": 1_234,
        "dead_letter_at": NOW - timedelta(seconds=3),
        "dead_letter_error": "too long: \u202epostgresql://u:pw@db/x",
    }
    streams = Lease(1, state=LeaseState.RUNNING, connected=True, **refused)
    latest = "1,234 dead letters, the latest 3.0s ago"
    assert why(view(streams), now=NOW) == f"{latest}: too long: \\u202epostgresql://u:***@db/x"
    silent = replace(streams, stalled=True, last_error="silent for 60 s", dead_letters=1)
    assert why(view(silent), now=NOW) == "silent for 60 s; 1 dead letter, the latest 3.0s ago"
    assert why(view(Lease(1, state=LeaseState.RUNNING, connected=True)), now=NOW) == ""


def test_what_a_source_sent_cannot_steer_the_page() -> None:
    nasty = "a\x00b\x1b[2J\u202egnp\nc"
    lease = Lease(
        *(1, 4, LeaseState.RUNNING, None, uuid4()),
        last_error=nasty,
        dead_letters=1,
        dead_letter_error=nasty,
        sink_error=nasty,
        blame=nasty,
        blamed=1,
        cursor={nasty: nasty},
    )
    shown = [
        *(text for _, text in shown_facts(feed_lines(document(view(lease)), now=NOW))),
        declaration_text({"source": {"x": nasty}}),
        event_detail(Event(NOW, "x", detail={"why": nasty, "all": [nasty]})),
    ]
    assert sum("gnp" in text for text in shown) == 7
    for text in shown:
        assert all(c.isprintable() or c == "\n" for c in text), text
