"""Who may ask the API what, from where, and what is written down of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.core.result import Ok
from tornado.httputil import HTTPHeaders

from feedq.api.authentication import RefusalLog, is_from_here
from feedq.api.endpoint import Endpoint
from feedq.api.openapi import openapi
from feedq.core.model import BACKFILL_SUFFIX, FeedBackfill
from feedq.core.roles import AccessRole
from feedq.errors import Conflict
from feedq.settings import Settings
from tests.api_client import ApiClient, ServedApi
from tests.api_examples import CHANGES, MINE, OF_FLEET
from tests.contract.api_stage import refusals
from tests.contract.harness import Harness, spec
from tests.contract.jobs_harness import JobsHarness
from tests.schedules import schedule_spec


@pytest.fixture
def endpoint(harness: Harness) -> Endpoint:
    for name in ("acme/a", "beta/b"):
        harness.feed(name, tenant=name[:4])
    return endpoint_of(harness)


def endpoint_of(harness: Harness, **settings: Any) -> Endpoint:
    return Endpoint.of(harness.store, Settings(database_url=SecretStr(harness.url), **settings))


def token(endpoint: Endpoint, role: AccessRole, tenant: str | None = None, *, lasts_s: float = 60) -> str:
    return endpoint.at.store.tokens.add(f"{role}-{tenant}", role, tenant=tenant, lasts_s=lasts_s)


@pytest.fixture
def acme(endpoint: Endpoint) -> Iterator[ApiClient]:
    with ApiClient(endpoint, token=token(endpoint, AccessRole.VIEWER, "acme")) as client:
        yield client


# -- who asks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", ["", "Bearer feedq_guessed", "Bearer", "Basic YTpi", "Bearer " + "x" * 300])
def test_a_stranger_is_told_how_to_get_a_token_and_nothing_else(endpoint: Endpoint, sent: str) -> None:
    with ApiClient(endpoint) as api:
        answer = api.get("/feeds", headers={"Authorization": sent} if sent else {})
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "`feedq token add`" in answer.json()["detail"]
        assert api.get("/openapi.json").status_code == 401
        assert api.ask("GET", f"{api.url}/healthz").json() == {"status": "ok"}
    first = refusals(endpoint.at.store)[0]
    assert first["asked"] == "GET /api/v1/feeds"
    assert first["by"] == {"who": "nobody", "from": "127.0.0.1"}


def test_a_token_is_kept_as_a_hash_alone(endpoint: Endpoint, harness: Harness) -> None:
    made = token(endpoint, AccessRole.ADMIN)
    ((row, event),) = harness.execute(
        "SELECT t::text, (SELECT string_agg(e::text, '') FROM feedq.event e) FROM feedq.token t"
    )
    assert made.startswith("feedq_")
    for text in (row, event):
        assert made not in str(text)
        assert made.removeprefix("feedq_") not in str(text)
    with pytest.raises(Conflict, match="exists already; `feedq token remove` ends it"):
        token(endpoint, AccessRole.ADMIN)


@pytest.mark.parametrize(
    ("headers", "origin", "expected"),
    [
        ({}, "127.0.0.1", True),
        ({"Host": "localhost:5556"}, "::1", True),
        ({}, "10.0.0.7", False),
        ({"Host": "evil.example"}, "127.0.0.1", False),
        ({"Origin": "https://evil.example"}, "127.0.0.1", False),
        ({"Sec-Fetch-Site": "cross-site"}, "127.0.0.1", False),
        ({"X-Forwarded-For": "10.0.0.7"}, "127.0.0.1", False),
    ],
)
def test_a_request_comes_from_here_when_nothing_stands_between(
    headers: dict[str, str], origin: str, expected: bool
) -> None:
    assert is_from_here(HTTPHeaders({"Host": "127.0.0.1"} | headers), origin) is expected


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 200), ({"X-Forwarded-For": "10.0.0.7"}, 401), ({"Authorization": "Bearer feedq_guessed"}, 401)],
)
def test_this_machine_needs_no_token_where_that_is_set(
    harness: Harness, headers: dict[str, str], status: int
) -> None:
    with ApiClient(endpoint_of(harness, api_loopback_role="viewer")) as api:
        assert api.get("/feeds", headers=headers).status_code == status


# -- what they see -----------------------------------------------------------------------------------


def test_a_viewer_of_a_tenant_sees_its_feeds_and_no_others(acme: ApiClient, endpoint: Endpoint) -> None:
    assert [view["feed"]["spec"]["name"] for view in acme.json("/feeds")["items"]] == ["acme/a"]
    assert acme.json("/feeds", params={"tenant": "beta"})["items"] == []
    assert acme.json("/feeds/acme%2Fa")["view"]["feed"]["spec"]["name"] == "acme/a"
    assert {event["feed"] for event in acme.json("/events")["items"]} == {"acme/a"}
    store = endpoint.at.store
    for name in ("acme/a", "beta/b"):
        feed = store.feeds.get(name)
        child = feed.spec.model_copy(update={"name": f"{name}{BACKFILL_SUFFIX}"})
        store.backfills.begin(feed, child, FeedBackfill(feed.id, 1, 5))
    assert [one["name"] for one in acme.json("/backfills")["items"]] == ["acme/a"]
    hidden, missing = acme.get("/feeds/beta%2Fb"), acme.get("/feeds/beta%2Fnone")
    assert hidden.status_code == missing.status_code == 404
    assert hidden.json()["detail"] == missing.json()["detail"].replace("beta/none", "beta/b")
    assert acme.get("/feeds/beta%2Fb/history").status_code == 404
    asked = [event["asked"] for event in refusals(endpoint.at.store)]
    assert asked == ["GET /api/v1/feeds/beta%2Fb", "GET /api/v1/feeds/beta%2Fb/history"]


# -- what is written down ----------------------------------------------------------------------------


def test_refusals_without_end_are_counted_and_not_all_written(endpoint: Endpoint) -> None:
    seconds = iter([0.0, 1.0, 2.0, 3.0, 61.0])
    log = RefusalLog(endpoint.at.store.tokens, per_minute=1, clock=lambda: next(seconds))
    for number in range(5):
        log.write(f"GET /{number}", 401)
    first, last = refusals(endpoint.at.store)
    assert (first["asked"], last["asked"], last["left_out"]) == ("GET /0", "GET /4", 3)


@pytest.mark.parametrize("said", ["maintenance", "Wartung f%C3%BCr ada", "Wartung für ada"])
def test_a_reason_may_be_given_with_any_request(endpoint: Endpoint, said: str) -> None:
    with ApiClient(endpoint) as api:
        raw = httpx.Headers([(b"Feedq-Reason", said.encode())])
        assert api.get("/feeds", headers=raw).status_code == 401
    with ApiClient(endpoint, token=token(endpoint, AccessRole.VIEWER)) as api:
        assert api.get("/feeds", headers=raw).status_code == 200
        answer = api.get("/feeds", headers={"Feedq-Reason": "x" * 1_001})
    assert (answer.status_code, answer.json()["detail"]) == (
        400,
        "reason: must be printable, and at most 1000 characters",
    )


# -- all that the document allows, and some that it does not -----------------------------------------

EXAMPLES = int(os.environ.get("API_EXAMPLES", "3"))
"""Of each operation, those that schemathesis draws: nothing may be a bug (5xx) or outside of the document."""
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


@pytest.mark.timeout(1_800)
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
