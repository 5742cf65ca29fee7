"""Who may ask the API what, from where, and what is written down of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from tornado.httputil import HTTPHeaders

from feedq.api.authentication import RefusalLog, is_from_here
from feedq.api.endpoint import Endpoint
from feedq.core.model import BACKFILL_SUFFIX, FeedBackfill
from feedq.core.roles import AccessRole
from feedq.errors import Conflict
from feedq.settings import Settings
from tests.api_client import ApiClient
from tests.contract.api_stage import refusals
from tests.contract.harness import Harness


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
