"""schemathesis asks the API all that its OpenAPI document allows, and some that it does not, in two roles.

Nothing may be a bug (5xx) or outside of the document, and nobody gets past their role. ``API_EXAMPLES=200`` asks
for longer than `make test` does.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.core.result import Ok

from feedq.api.endpoint import Endpoint
from feedq.api.openapi import openapi
from feedq.core.roles import AccessRole
from feedq.settings import Settings
from tests.api_client import ServedApi
from tests.api_examples import CHANGES, MINE, OF_FLEET
from tests.contract.harness import spec
from tests.contract.jobs_harness import JobsHarness
from tests.schedules import schedule_spec

pytestmark = pytest.mark.timeout(1_800)

EXAMPLES = int(os.environ.get("API_EXAMPLES", "3"))
THEIRS = "beta/b"
HIDDEN = "tcp://beta.example:7001"
ODD = ("none", "a/b?c#d %2F")
NAMES = {
    "/feeds": (MINE, MINE, THEIRS, "acme/new"),
    "/workers": ("w@host", "w"),
    "/schedules": ("nightly", "new"),
    "/connectors": ("tcp",),
}
"""What there is, by the kind of thing."""
SLOW = ("/doctor", "/tap")
BODIES = {example.verb.name: example.others for example in CHANGES}
ADDRESS_MAX = 10_000
"""Characters of a query; percent-encoded, they are several times as many."""
STREAM = "/tap"
"""What goes on for as long as it is asked to."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


@dataclass(frozen=True, slots=True)
class StoredApi:
    """The API on a port, and its store."""

    url: str
    harness: JobsHarness

    def token(self, role: str, tenant: str | None) -> str:
        return self.harness.store.tokens.add("one", AccessRole(role), tenant=tenant, lasts_s=3_600)


@pytest.fixture
def served(control_database_url: str, broker_url: str) -> Iterator[StoredApi]:
    harness = JobsHarness(control_database_url)
    known: dict[str, Any] = {"database_url": SecretStr(harness.url), "broker_url": SecretStr(broker_url)}
    endpoint = Endpoint.of(harness.store, Settings(**known))
    with ServedApi(endpoint) as served:
        yield StoredApi(served.url, harness)
    harness.close()


def populate(harness: JobsHarness) -> None:
    harness.feed(MINE, tenant="acme")
    harness.store.feeds.add(spec(THEIRS, tenant="beta", source={"url": HIDDEN}))
    harness.worker("w@host")
    harness.schedules.add(schedule_spec())


class Stranger:
    """Asks in one role, whatever comes to mind, and checks what is answered."""

    def __init__(self, served: StoredApi, role: str, tenant: str | None) -> None:
        load_all_checks()
        self.served, self.role, self.tenant = served, role, tenant
        # Its types have more kinds of checks than these are of.
        self.checks: Any = list(schemathesis.checks.CHECKS.get_by_names(CHECKS))
        self.headers = {"Authorization": f"Bearer {served.token(role, tenant)}"}
        self.session = requests.Session()
        self.answered: Counter[int] = Counter()

    def ask(self, case: Case[Any], name: str | None, body: Any) -> None:
        if name is not None and "name" in (case.path_parameters or {}):
            case.path_parameters["name"] = name
        if body is not None:
            case.body, case.media_type = body, "application/json"
            case.query = {}
        if case.path.endswith(STREAM):
            case.query = {"seconds": 1}
        if len(str(case.query)) > ADDRESS_MAX:
            return  # the server refuses it before the API hears of it
        answer = case.call(base_url=self.served.url, session=self.session, headers=self.headers, timeout=30)
        case.validate_response(answer, checks=self.checks)
        self.answered[answer.status_code] += 1
        path, is_done = case.operation.path.removeprefix("/api/v1"), answer.status_code < 300
        if self.tenant is not None:
            assert not (path.startswith(OF_FLEET) and is_done), path
            assert HIDDEN not in answer.text
        if self.role != "admin":
            assert not (path.startswith("/tokens") and is_done)


@pytest.mark.parametrize(("role", "tenant"), [("operator", "acme"), ("admin", None)])
def test_no_request_finds_a_bug_or_a_way_past_the_role(
    served: StoredApi, role: str, tenant: str | None
) -> None:
    populate(served.harness)
    before = served.harness.store.feeds.get(THEIRS)
    stranger = Stranger(served, role, tenant)
    schema = schemathesis.openapi.from_dict(openapi())
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        examples = 1 if operation.path.endswith(SLOW) else EXAMPLES
        cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))

        kind = "/" + operation.path.split("/")[3]
        names = st.sampled_from((None, *ODD, *NAMES.get(kind, ())))
        label = operation.definition.raw["operationId"]
        bodies = (None, BODIES[label]) if label in BODIES else (None,)

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases, name=names, body=st.sampled_from(bodies))
        def ask(case: Case[Any], name: str | None, body: Any) -> None:
            stranger.ask(case, name, body)

        ask()
    assert stranger.answered[200] > 10
    assert stranger.answered[403 if role != "admin" else 404] > 0
    if role != "admin":
        assert served.harness.store.feeds.get(THEIRS).version == before.version
