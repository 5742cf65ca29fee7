"""Who may ask the API what, from where, and what is written down of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from feedq.api.backend import ApiBackend, RefusalLog
from feedq.api.server import make_app
from feedq.control.store.history import EventFilter
from feedq.core.model import Event
from feedq.core.roles import AccessRole
from feedq.errors import Conflict
from feedq.settings import Settings
from feedq.telemetry.logs import EventKind
from tests.api_client import ApiClient
from tests.contract.harness import PostgresHarness

pytestmark = pytest.mark.servers


@pytest.fixture
def backend(postgres_harness: PostgresHarness) -> ApiBackend:
    for name in ("acme/a", "beta/b"):
        postgres_harness.feed(name, tenant=name[:4])
    return backend_of(postgres_harness)


def backend_of(harness: PostgresHarness, **settings: Any) -> ApiBackend:
    return ApiBackend.of(harness.store, Settings(database_url=SecretStr(harness.url), **settings))


def token(backend: ApiBackend, role: AccessRole, tenant: str | None = None, *, lasts_s: float = 60) -> str:
    return backend.store.tokens.add(f"{role}-{tenant}", role, tenant=tenant, lasts_s=lasts_s)


@pytest.fixture
def acme(backend: ApiBackend) -> Iterator[ApiClient]:
    with ApiClient(make_app(backend), token=token(backend, AccessRole.VIEWER, "acme")) as client:
        yield client


def refusals(backend: ApiBackend) -> list[Event]:
    found = backend.store.history.before(EventFilter((EventKind.ACCESS_REFUSED,)))
    return [listed.event for listed in reversed(found)]


# -- who asks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", ["", "Bearer feedq_guessed", "Bearer ", "Basic YTpi", "Bearer " + "x" * 300])
def test_a_stranger_is_told_how_to_get_a_token_and_nothing_else(backend: ApiBackend, sent: str) -> None:
    with ApiClient(make_app(backend)) as api:
        answer = api.get("/feeds", headers={"Authorization": sent} if sent else {})
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "`feedq token add`" in answer.json()["detail"]
        assert api.get("/openapi.json").status_code == 401
        assert api.ask("GET", "http://127.0.0.1/healthz").json() == {"status": "ok"}
    first = refusals(backend)[0]
    assert first.detail["asked"] == "GET /api/v1/feeds"
    assert first.detail["by"] == {"who": "nobody", "from": "127.0.0.1"}


def test_a_token_ends_with_its_time_and_when_it_is_removed(
    backend: ApiBackend, postgres_harness: PostgresHarness
) -> None:
    for end in ("time", "removal"):
        with ApiClient(make_app(backend), token=token(backend, AccessRole.VIEWER)) as api:
            assert api.get("/feeds").status_code == 200
            if end == "time":
                postgres_harness.execute("UPDATE feedq.token SET expires_at = clock_timestamp()")
                assert api.get("/feeds").status_code == 401
            backend.store.tokens.remove("viewer-None")
            assert api.get("/feeds").status_code == 401


def test_a_token_is_kept_as_a_hash_alone(backend: ApiBackend, postgres_harness: PostgresHarness) -> None:
    made = token(backend, AccessRole.ADMIN)
    ((row, event),) = postgres_harness.execute(
        "SELECT t::text, (SELECT string_agg(e::text, '') FROM feedq.event e) FROM feedq.token t"
    )
    assert made.startswith("feedq_")
    for text in (row, event):
        assert made not in str(text)
        assert made.removeprefix("feedq_") not in str(text)
    with pytest.raises(Conflict, match="exists already; `feedq token remove` ends it"):
        token(backend, AccessRole.ADMIN)


@pytest.mark.parametrize(
    ("headers", "client", "status"),
    [
        ({}, "127.0.0.1", 200),
        ({"Host": "localhost:5556"}, "::1", 200),
        ({}, "10.0.0.7", 401),
        ({"Host": "evil.example"}, "127.0.0.1", 401),
        ({"Origin": "https://evil.example"}, "127.0.0.1", 401),
        ({"Sec-Fetch-Site": "cross-site"}, "127.0.0.1", 401),
        ({"X-Forwarded-For": "10.0.0.7"}, "127.0.0.1", 401),
        ({"Authorization": "Bearer feedq_guessed"}, "127.0.0.1", 401),
    ],
)
def test_this_machine_needs_no_token_where_that_is_set_and_nothing_stands_between(
    postgres_harness: PostgresHarness, headers: dict[str, str], client: str, status: int
) -> None:
    open_here = backend_of(postgres_harness, api_loopback_role="viewer")
    with ApiClient(make_app(open_here), client=client) as api:
        assert api.get("/feeds", headers=headers).status_code == status


# -- what they see -----------------------------------------------------------------------------------


def test_a_viewer_of_a_tenant_sees_its_feeds_and_no_others(acme: ApiClient, backend: ApiBackend) -> None:
    assert [view["feed"]["spec"]["name"] for view in acme.json("/feeds")["items"]] == ["acme/a"]
    assert acme.json("/feeds", params={"tenant": "beta"})["items"] == []
    assert acme.json("/feeds/acme%2Fa")["view"]["feed"]["spec"]["name"] == "acme/a"
    assert {event["feed"] for event in acme.json("/events")["items"]} == {"acme/a"}
    hidden, missing = acme.get("/feeds/beta%2Fb"), acme.get("/feeds/beta%2Fnone")
    assert hidden.status_code == missing.status_code == 404
    assert hidden.json()["detail"] == missing.json()["detail"].replace("beta/none", "beta/b")
    assert acme.get("/feeds/beta%2Fb/history").status_code == 404
    asked = [event.detail["asked"] for event in refusals(backend)]
    assert asked == ["GET /api/v1/feeds/beta%2Fb", "GET /api/v1/feeds/beta%2Fb/history"]


@pytest.mark.parametrize("path", ["/workers", "/schedules", "/runs", "/queues", "/status"])
def test_what_belongs_to_no_tenant_needs_a_role_over_everything(
    acme: ApiClient, backend: ApiBackend, path: str
) -> None:
    answer = acme.get(path)
    assert answer.status_code == 403
    assert "it needs a role over everything" in answer.json()["detail"]
    (refused,) = refusals(backend)
    assert refused.detail["by"]["who"] == "token viewer-acme"


# -- what is written down ----------------------------------------------------------------------------


def test_refusals_without_end_are_counted_and_not_all_written(backend: ApiBackend) -> None:
    seconds = iter([0.0, 1.0, 2.0, 3.0, 61.0])
    log = RefusalLog(backend.store.tokens, per_minute=1, clock=lambda: next(seconds))
    for number in range(5):
        log.write(f"GET /{number}", 401)
    first, last = refusals(backend)
    assert (first.detail["asked"], last.detail["asked"], last.detail["left_out"]) == ("GET /0", "GET /4", 3)


@pytest.mark.parametrize("said", ["maintenance", "Wartung f%C3%BCr ada", "Wartung für ada"])
def test_a_reason_may_be_given_with_any_request(backend: ApiBackend, said: str) -> None:
    with ApiClient(make_app(backend)) as api:
        raw = httpx.Headers([(b"Feedq-Reason", said.encode())])
        assert api.get("/feeds", headers=raw).status_code == 401
    with ApiClient(make_app(backend), token=token(backend, AccessRole.VIEWER)) as api:
        assert api.get("/feeds", headers=raw).status_code == 200
        answer = api.get("/feeds", headers={"Feedq-Reason": "x" * 1_001})
    assert (answer.status_code, answer.json()["detail"]) == (
        400,
        "reason: must be printable, and at most 1000 characters",
    )
