"""Every verb answers the same, byte for byte, at the database and over HTTP, and is refused to whoever may not.

Over HTTP the client of the command asks. A refusal changes nothing and is written down.
The requests are those of `tests.api_examples`, at least one of each verb.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import jsonschema
import msgspec
import psycopg2
import pytest

from feedq.api.authentication import RefusalLog
from feedq.api.endpoint import Endpoint
from feedq.api.openapi import openapi
from feedq.cli.doing import ApiConnection
from feedq.control.store.postgresql import PostgresStore
from feedq.core.roles import AccessRole, Caller
from feedq.errors import InvalidInput
from feedq.local.postgres import Postgres
from feedq.verbs.registry import At, encode, load
from tests.api_client import ApiClient
from tests.api_examples import CHANGES, EXAMPLES, MINE, OF_FLEET, PREFIX, THEIRS, Example
from tests.cluster import wait_until
from tests.contract.api_stage import populate, query, refusals, rows_of, settings_of
from tests.contract.jobs_harness import JobsHarness
from tests.contract.sink_harness import empty_database

pytestmark = pytest.mark.timeout(300)

ORIGIN = "127.0.0.1"
OF_ADMINS: Final = ("list_tokens", "add_token", "remove_token", "sync_catalog")
SENDS: Final = ("try_alerts",)
"""What changes nothing, and sends messages to people."""
SLOW: Final = ("diagnose_fleet", "tap_feed")
SHOWS_RECORDS: Final = ("tap_feed",)
"""What looks, and needs an operator all the same."""
ROLES: Final = [(role, tenant) for role in AccessRole for tenant in (None, "acme", "beta")]


@dataclass(frozen=True, slots=True)
class Asker:
    """Somebody who asks."""

    who: str
    """As history calls them."""
    token: str = ""
    role: AccessRole | None = None
    tenant: str | None = None

    def may(self, example: Example) -> bool:
        """Whether it is done for them: said here once more, and not by what the verbs themselves say."""
        if self.role is None:
            return False
        changes = example.verb.method != "GET" or example.verb.name in SHOWS_RECORDS
        least = AccessRole.OPERATOR if changes else AccessRole.VIEWER
        least = AccessRole.ADMIN if example.verb.name in OF_ADMINS else least
        return self.role.includes(least) and self._owns(example)

    def _owns(self, example: Example) -> bool:
        is_of_fleet = example.path.startswith(OF_FLEET) or (
            example.path == "/declarations" and "feeds" not in example.arguments
        )
        if self.tenant is None or is_of_fleet:
            return self.tenant is None
        return self.tenant == "acme" or not _names_acme(example)


def _names_acme(example: Example) -> bool:
    """Whether it names a feed of that tenant; a list leaves out what is another tenant's."""
    given = example.arguments
    return "acme" in str(given if example.verb.changes else (given.get("name"), given.get("feed")))


class Stage:
    """An API over a store that has something for each example to change, and a sink."""

    def __init__(self, harness: JobsHarness, sink_url: str, catalog: Path) -> None:
        self.harness, self.sink_url = harness, sink_url
        log = RefusalLog(harness.store.tokens, per_minute=100_000)
        at = Endpoint.of(harness.store, settings_of(harness.url, sink_url, catalog)).at
        self.endpoint = Endpoint(at, log.write)
        populate(harness, self.endpoint, sink_url)
        self.api = ApiClient(self.endpoint)

    def token(self, name: str, role: AccessRole, tenant: str | None = None) -> str:
        return self.endpoint.at.store.tokens.add(name, role, tenant=tenant, lasts_s=600)

    def askers(self) -> list[Asker]:
        """Everybody whom the API knows, and strangers."""
        expired, removed = (self.token(name, AccessRole.ADMIN) for name in ("expired", "removed"))
        self.harness.execute("UPDATE feedq.token SET expires_at = clock_timestamp() WHERE name = 'expired'")
        self.endpoint.at.store.tokens.remove("removed")
        unknown = [Asker("nobody", token) for token in ("", "feedq_guessed", expired, removed)]
        known = []
        for role, tenant in ROLES:
            name = f"{role}-{tenant}"
            known.append(Asker(f"token {name}", self.token(name, role, tenant), role, tenant))
        return unknown + known

    def ask(self, example: Example, token: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        asked = {key: value | more for key, value in example.asked.items()}
        return self.api.ask(example.verb.method, example.path, headers=headers, **asked)

    def everything(self, *, but: str) -> list[tuple[object, ...]]:
        """All rows of all tables of the store and of the sink; ``but`` says which of history are left out."""
        return rows_of(self.harness.url, but=but) + rows_of(self.sink_url)


@pytest.fixture
def stage(control_database_url: str, postgres: Postgres, tmp_path: Path) -> Iterator[Stage]:
    harness = JobsHarness(control_database_url)
    made = Stage(harness, empty_database(postgres), tmp_path)
    yield made
    made.api.close()
    harness.close()


def is_waited_for(*sessions: tuple[str, Any]) -> bool:
    """Whether somebody waits for what these sessions have locked."""
    sql = "SELECT 1 FROM pg_stat_activity WHERE pg_blocking_pids(pid) && %s"
    return any(query(url, sql, [session.info.backend_pid]) for url, session in sessions)


def asked_while_it_changes_hands(stage: Stage, example: Example, token: str) -> httpx.Response:
    """The answer to a request that looks at the feed before, and changes it after, it is another tenant's."""
    control, sink = psycopg2.connect(stage.harness.url), psycopg2.connect(stage.sink_url)
    with closing(control), closing(sink), ThreadPoolExecutor(1) as pool:
        with control.cursor() as held, sink.cursor() as landed:
            held.execute("SELECT FROM feedq.lease FOR UPDATE")
            # Whoever compared only versions would not notice.
            held.execute("SET LOCAL session_replication_role = replica")
            held.execute("UPDATE feedq.feed SET tenant = 'beta'")
            landed.execute("LOCK TABLE feedq_checkpoint, feedq_dead_letter IN EXCLUSIVE MODE")
        answer = pool.submit(stage.ask, example, token)
        try:
            wait_until(
                lambda: is_waited_for((stage.harness.url, control), (stage.sink_url, sink)),
                limit_s=20,
                what="the request waits for a lock",
            )
        finally:
            control.commit()
            sink.commit()
        return answer.result(timeout=30)


def test_a_verb_is_done_for_who_may_and_answers_as_the_document_says(stage: Stage) -> None:
    """Without this, what is refused below might be refused for a mistake in the example."""
    token = stage.token("admin", AccessRole.ADMIN)
    document = openapi()
    before = stage.everything(but="true")
    for example in EXAMPLES:
        answer = stage.ask(example, token)
        assert answer.status_code == 200, (str(example), answer.text)
        if not example.verb.is_stream:
            operation = document["paths"][PREFIX + example.verb.path][example.verb.method.lower()]
            schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            jsonschema.validate(answer.json(), schema | {"components": document["components"]})
        if example.verb.changes and example.verb.name not in SENDS:
            assert answer.json().get("failed", []) == [], (str(example), answer.text)
            after = stage.everything(but="true")
            assert after != before, str(example)
            before = after
    assert refusals(stage.endpoint.at.store) == []


def test_a_verb_is_refused_to_who_may_not_and_that_is_written_down(stage: Stage) -> None:
    """Who may not ask is refused before arguments are looked at, and a dry run is refused as well."""
    askers = stage.askers()
    before = stage.everything(but="kind = 'access_refused'")
    for example in EXAMPLES:
        written = []
        dry_run = "dry_run" in example.verb.arguments.__struct_fields__
        for asker in (asker for asker in askers if not asker.may(example)):
            for more in ({}, {"dry_run": True}) if dry_run else ({},):
                answer = stage.ask(example, asker.token, **more)
                said = (str(example), asker.who, answer.text)
                assert answer.status_code in ((401,) if asker.role is None else (403, 404)), said
                assert answer.headers["Content-Type"] == "application/problem+json"
                assert answer.json()["status"] == answer.status_code
                asked = {
                    "asked": f"{example.verb.method} {PREFIX}{example.path}",
                    "status": answer.status_code,
                }
                written.append(asked | {"by": {"who": asker.who, "from": ORIGIN}})
        assert refusals(stage.endpoint.at.store) == written, str(example)
        stage.harness.execute("DELETE FROM feedq.event WHERE kind = 'access_refused'")
    assert stage.everything(but="kind = 'access_refused'") == before


def test_who_may_not_ask_is_refused_whatever_the_arguments_are(stage: Stage) -> None:
    token = stage.token("viewer", AccessRole.VIEWER)
    for example in CHANGES:
        assert stage.ask(example, token, unknown=1).status_code == 403, str(example)


def test_a_refusal_in_the_middle_of_a_stream_is_written_down(stage: Stage) -> None:
    token = stage.token("beta", AccessRole.OPERATOR, "beta")
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    asked = {"action": "pause", "select": {"names": [MINE]}}
    answer = stage.api.ask("POST", "/feeds/act", json=asked, headers=headers)
    assert answer.text.startswith("event: problem")
    assert [one["status"] for one in refusals(stage.endpoint.at.store)] == [403]


def test_a_verb_that_looks_is_done_for_whoever_may_look(stage: Stage) -> None:
    for asker in stage.askers():
        for example in EXAMPLES:
            if asker.may(example) and not example.verb.changes and example.verb.name not in SLOW:
                answer = stage.ask(example, asker.token)
                assert answer.status_code == 200, (str(example), asker.who, answer.text)
                assert asker.tenant != "beta" or MINE not in answer.text, (str(example), asker.who)
                assert asker.tenant != "acme" or THEIRS not in answer.text, (str(example), asker.who)


OF_A_FEED: Final = [example for example in CHANGES if _names_acme(example) and example.is_of_tenant]
BY_PARTS: Final = ("act_on_feeds", "declare")
"""What answers for each feed by itself."""


@pytest.mark.parametrize("example", OF_A_FEED, ids=lambda example: example.verb.name)
def test_a_feed_that_changes_hands_in_between_is_not_changed(stage: Stage, example: Example) -> None:
    token = stage.token("acme", AccessRole.OPERATOR, "acme")
    answer = asked_while_it_changes_hands(stage, example, token)
    assert "does not belong to that tenant" in answer.text
    assert answer.status_code == (200 if example.verb.name in BY_PARTS else 403)
    changed = "SELECT name FROM feedq.feed WHERE generation > 2 OR removed_at IS NOT NULL"
    assert stage.harness.execute(changed) == []
    assert query(stage.sink_url, "SELECT count(*) FROM feedq_checkpoint") == [(2,)]
    assert query(stage.sink_url, "SELECT error FROM feedq_dead_letter") == [("refused",)] * 2


# -- at the database and over HTTP -------------------------------------------------------------------


MOMENT = re.compile(rb'"20\d\d-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)"')
OF_THE_MOMENT = re.compile(
    rb'"(heartbeat_age_s|lag_s|pass_age_s|oldest_due_s|overdue_s|age_s|silent_s|token|uuid)":("[^"]*"|[0-9.e-]+)'
)
ADDRESS_MAX = 60_000
AGE = re.compile(rb"[-+]?\b\d[\d.]*\s?(ms|[smhd])\b( ago)?|\b\d+ of \d+ in use|\b\d+ free")


class Heard(ApiConnection):
    """The client of the command, and the documents that the server has sent to it."""

    sent = b""

    def read(self, text: bytes, kind: Any) -> Any:
        self.sent = bytes(text)
        return super().read(text, kind)


class Ways:
    """One caller on two ways to the same verbs."""

    def __init__(self, here: At, there: ApiClient, token: str) -> None:
        self.here, self.there = here, there
        self.command = Heard(there.url, token)

    def directly(self, example: Example) -> bytes:
        verb = example.verb
        found = verb.call(self.here, verb.parse(example.arguments))
        return b"".join(map(encode, filter(None, found))) if verb.is_stream else encode(found)

    def refused_directly(self, example: Example) -> str:
        """What a command at the database says is wrong with the arguments."""
        with pytest.raises(InvalidInput) as refused:
            self.directly(example)
        return str(refused.value)

    def refused_by_server(self, example: Example) -> str:
        answer = self.there.ask(example.verb.method, example.path, **example.asked)
        assert (answer.status_code, answer.json()["error"]) == (400, "InvalidInput"), (
            str(example),
            answer.text,
        )
        detail: str = answer.json()["detail"]
        return detail

    def by_server(self, example: Example) -> bytes:
        """The answer as the command has it, which is what the server has sent."""
        verb = example.verb
        found = self.command.do(verb, verb.parse(example.arguments), None)
        if verb.is_stream:
            return b"".join(map(encode, found))
        assert plain(encode(found)) == plain(self.command.sent), str(example)
        return self.command.sent


@pytest.fixture
def ways(control_database_url: str, postgres: Postgres, tmp_path: Path) -> Iterator[Ways]:
    harness = JobsHarness(control_database_url)
    sink_url = empty_database(postgres)
    settings = settings_of(harness.url, sink_url, tmp_path)
    populate(harness, Endpoint.of(harness.store, settings), sink_url)
    token = harness.store.tokens.add("root", AccessRole.ADMIN, tenant=None, lasts_s=600)
    # The next harness would take over sessions that `close` leaves, and `_copy` ends them.
    harness.end_sessions()
    url, other_sink = _copy(postgres, control_database_url), _copy(postgres, sink_url)
    here, there = settings, settings_of(url, other_sink, tmp_path)
    caller = Caller("token root", AccessRole.ADMIN)
    with (
        closing(PostgresStore(control_database_url)) as store,
        closing(PostgresStore(url)) as other,
        ApiClient(Endpoint.of(other, there), token=token) as client,
    ):
        made = Ways(At(store, here, caller, Endpoint.of(store, here).at.open_sink), client, token)
        with closing(made.command):
            yield made
    for copy in (url, other_sink):
        postgres.drop_database(_name(copy))


def _copy(postgres: Postgres, url: str) -> str:
    """A database that has what this one has, and nobody's session."""
    name = _name(url)
    sessions = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
    query(postgres.url(), sessions, name)
    postgres.drop_database(f"{name}_copy")
    return postgres.create_database(f"{name}_copy", template=name)


def _name(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]


def plain(text: bytes) -> list[bytes]:
    """The parts of a document, which show better where two differ; without what passes from moment to moment."""
    text = MOMENT.sub(b'"now"', text)
    text = OF_THE_MOMENT.sub(rb'"\1":0', text)
    return AGE.sub(b"just now", text).replace(b"_copy", b"").split(b",")


def test_no_verb_is_without_an_example() -> None:
    assert {example.verb.name for example in EXAMPLES} == load().keys()


def test_every_verb_answers_the_same_on_both_ways(ways: Ways) -> None:
    for example in EXAMPLES:
        for dry_run in (True, False) if "dry_run" in example.verb.arguments.__struct_fields__ else (None,):
            more: dict[str, Any] = {} if dry_run is None else {"dry_run": dry_run}
            asked = Example(example.verb, {**example.arguments, **more})
            assert plain(ways.by_server(asked)) == plain(ways.directly(asked)), str(asked)


def beyond(kind: Any) -> Iterator[Any]:
    """Values just beyond each bound of an argument."""
    match kind:
        case msgspec.inspect.UnionType(types):
            for one in types:
                yield from beyond(one)
        case msgspec.inspect.Metadata(of):
            yield from beyond(of)
        case msgspec.inspect.IntType(gt, ge, lt, le) | msgspec.inspect.FloatType(gt, ge, lt, le):
            steps = (gt, 0), (ge, -1), (lt, 0), (le, 1)
            yield from (bound + step for bound, step in steps if bound is not None)
        case msgspec.inspect.StrType(shortest, longest):
            yield from () if longest is None else ["x" * (longest + 1)]
            yield from () if not shortest else [""]
        case msgspec.inspect.CollectionType(item_type, _, longest):
            yield from () if longest is None else [["x"] * (longest + 1)]
            yield from ([value] for value in beyond(item_type))
        case msgspec.inspect.DateTimeType():
            yield from ("1969-12-31T00:00:00Z", "3000-01-01T00:00:00Z")


def out_of_bounds() -> Iterator[tuple[Example, str]]:
    """Each verb with an argument that is just out of its bounds."""
    examples = {example.verb.name: example for example in EXAMPLES}
    for example in examples.values():
        described: Any = msgspec.inspect.type_info(example.verb.arguments)
        for field in described.fields:
            for value in beyond(field.type):
                in_address = not example.verb.changes or field.name in example.verb.in_path
                if not in_address or 0 < len(str(value)) < ADDRESS_MAX:
                    yield Example(example.verb, {**example.arguments, field.name: value}), field.name


def test_an_argument_out_of_bounds_is_refused_alike(ways: Ways) -> None:
    tried = set()
    for example, name in out_of_bounds():
        said = ways.refused_directly(example)
        assert said.startswith(name), (str(example), said)
        assert ways.refused_by_server(example) == said
        tried.add((example.verb.name, name))
    assert {verb for verb, _ in tried} > {"list_feeds", "show_feed", "tap_feed", "add_token", "list_events"}
