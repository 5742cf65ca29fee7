"""Every verb answers the same, byte for byte, wherever it is done: at the database, or by a server that is asked.

Two stores are copies of one another. A verb is done directly in the first and over HTTP in the second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from feedq.api.endpoint import Endpoint
from feedq.control.store.postgresql import PostgresStore
from feedq.core.roles import AccessRole, Caller
from feedq.errors import InvalidInput
from feedq.local.postgres import Postgres
from feedq.verbs.registry import At, encode, load
from tests.api_client import ApiClient
from tests.api_examples import EXAMPLES, Example
from tests.contract.api_stage import populate, query, settings_of
from tests.contract.jobs_harness import JobsHarness
from tests.contract.sink_harness import empty_database

pytestmark = pytest.mark.timeout(300)

MOMENT = re.compile(rb'"20\d\d-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)"')
OF_THE_MOMENT = re.compile(
    rb'"(heartbeat_age_s|lag_s|pass_age_s|oldest_due_s|overdue_s|age_s|silent_s|token|uuid)":("[^"]*"|[0-9.e-]+)'
)
ADDRESS_MAX = 60_000
AGE = re.compile(rb"[-+]?\b\d[\d.]*\s?(ms|[smhd])\b( ago)?|\b\d+ of \d+ in use|\b\d+ free")


class Ways:
    """One caller on two ways to the same verbs."""

    def __init__(self, here: At, there: ApiClient) -> None:
        self.here, self.there = here, there

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
        answer = self.there.ask(example.verb.method, example.path, **example.asked)
        assert answer.status_code == 200, (str(example), answer.text)
        if not example.verb.is_stream:
            return answer.content
        return b"".join(line[6:] for line in answer.content.splitlines() if line.startswith(b"data: "))


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
        yield Ways(At(store, here, caller, Endpoint.of(store, here).at.open_sink), client)
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
