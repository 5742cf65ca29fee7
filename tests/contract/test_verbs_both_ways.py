"""Every verb answers the same, byte for byte, wherever it is done: at the database, or by a server that is asked.

Two stores are copies of one another. A verb is done directly in the first and over HTTP in the second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from feedq.api.endpoint import Endpoint
from feedq.control.store.postgresql import PostgresStore
from feedq.core.roles import AccessRole, Caller
from feedq.local.postgres import Postgres
from feedq.verbs.registry import At, encode, load
from tests.api_client import ApiClient
from tests.api_examples import EXAMPLES, Example
from tests.contract.api_stage import populate, query, settings_of
from tests.contract.jobs_harness import JobsHarness
from tests.contract.sink_harness import empty_database

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

MOMENT = re.compile(rb'"20\d\d-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)"')
OF_THE_MOMENT = re.compile(
    rb'"(heartbeat_age_s|lag_s|pass_age_s|oldest_due_s|overdue_s|age_s|silent_s|token|uuid)":("[^"]*"|[0-9.e-]+)'
)
AGE = re.compile(rb"[-+]?\b\d[\d.]*\s?(ms|[smhd])\b( ago)?|\b\d+ of \d+ in use")


class Ways:
    """One caller on two ways to the same verbs."""

    def __init__(self, here: At, there: ApiClient) -> None:
        self.here, self.there = here, there

    def directly(self, example: Example) -> bytes:
        verb = example.verb
        found = verb.call(self.here, verb.parse(example.arguments))
        return b"".join(map(encode, filter(None, found))) if verb.is_stream else encode(found)

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
    harness.close()
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
