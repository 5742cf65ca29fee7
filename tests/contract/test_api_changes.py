"""What the API changes, under which preconditions, and that it is changed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from feedq.api.app import make_app
from feedq.api.backend import ApiBackend
from feedq.control.store.history import EventFilter
from feedq.core.model import TargetState
from feedq.core.roles import AccessRole
from feedq.core.schedule.model import RunState
from feedq.settings import Settings
from tests.api_client import ApiClient
from tests.contract.jobs_harness import JobsHarness

pytestmark = pytest.mark.servers

NAME = "/feeds/acme%2Forders"
DECLARED = {
    "tenant": "acme",
    "connector": "tcp",
    "source": {"url": "tcp://127.0.0.1:7001"},
    "sink": {"table": "orders"},
}
SCHEDULE = {"task": "acme.jobs.cleanup", "every": "1h"}
PUTS = 100


@pytest.fixture
def harness(control_database_url: str) -> Iterator[JobsHarness]:
    made = JobsHarness(control_database_url)
    yield made
    made.close()


@pytest.fixture
def backend(harness: JobsHarness) -> ApiBackend:
    return ApiBackend.of(harness.store, Settings(database_url=SecretStr(harness.url)))


MakeClient = Callable[..., ApiClient]


@pytest.fixture
def client_of(backend: ApiBackend) -> Iterator[MakeClient]:
    """Clients by role and tenant."""
    made: list[ApiClient] = []

    def make(role: str, tenant: str | None = None) -> ApiClient:
        token = backend.store.tokens.add(f"{role}-{tenant}", AccessRole(role), tenant=tenant, lasts_s=60)
        made.append(ApiClient(make_app(backend), token=token))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def api(client_of: MakeClient) -> ApiClient:
    return client_of("operator")


def put(api: ApiClient, *, headers: Any = None, query: str = "", **changes: Any) -> httpx.Response:
    return api.ask("PUT", NAME + query, json=DECLARED | changes, headers=headers)


# -- declaring ---------------------------------------------------------------------------------------


def test_a_put_adds_edits_or_leaves_alone(api: ApiClient) -> None:
    added = put(api)
    assert (added.status_code, added.json()["result"], added.json()["generation"]) == (201, "added", 1)
    again = put(api)
    assert (again.status_code, again.json()["result"]) == (200, "unchanged")
    assert again.headers["ETag"] == added.headers["ETag"]
    edited = put(api, weight=2)
    assert (edited.json()["result"], edited.json()["generation"]) == ("edited", 2)
    assert edited.json()["changes"] == [{"option": "weight", "before": 1.0, "after": 2.0}]
    shown = api.get(f"{NAME}/declaration")
    assert (shown.headers["ETag"], shown.json()["weight"]) == (edited.headers["ETag"], 2.0)


def test_a_put_keeps_a_pause_unless_it_says_otherwise(api: ApiClient, harness: JobsHarness) -> None:
    put(api)
    harness.store.feeds.set_target("acme/orders", TargetState.PAUSED)
    assert put(api).json()["result"] == "unchanged"
    assert put(api, target_state="running").json()["result"] == "edited"


def test_preconditions_are_those_of_http(api: ApiClient, harness: JobsHarness) -> None:
    assert put(api, headers={"If-Match": "*"}).status_code == 412
    first = put(api, headers={"If-None-Match": "*"})
    assert first.status_code == 201
    assert put(api, headers={"If-None-Match": "*"}).status_code == 412
    etag = first.headers["ETag"]
    assert put(api, headers={"If-Match": etag}, weight=2).status_code == 200
    late = put(api, headers={"If-Match": etag}, weight=3)
    assert late.status_code == 412
    assert "is of generation 2 by now, and not of 1" in late.json()["detail"]
    for method, path in (("DELETE", NAME), ("POST", f"{NAME}/pause"), ("POST", f"{NAME}/restart")):
        assert api.ask(method, path, headers={"If-Match": etag}).status_code == 412
    assert api.ask("DELETE", NAME, headers={"If-Match": "17"}).status_code == 400
    harness.store.feeds.remove("acme/orders")
    anew = put(api)
    assert "removed and declared anew" in put(api, headers={"If-Match": etag}, weight=9).json()["detail"]
    assert anew.headers["ETag"] != etag


def test_of_a_hundred_edits_of_one_version_one_is_made(api: ApiClient, harness: JobsHarness) -> None:
    etag = put(api).headers["ETag"]
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda n: put(api, headers={"If-Match": etag}, weight=n + 2), range(PUTS)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200, *[412] * (PUTS - 1)]
    assert harness.store.feeds.get("acme/orders").generation == 2


def test_a_hundred_equal_declarations_at_once_make_one_generation(
    api: ApiClient, harness: JobsHarness
) -> None:
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: put(api), range(PUTS)))
    assert sorted({answer.status_code for answer in answers}) == [200, 201]
    assert [answer.json()["result"] for answer in answers].count("added") == 1
    assert harness.store.feeds.get("acme/orders").generation == 1


def test_a_patch_changes_what_it_names(api: ApiClient) -> None:
    put(api, labels={"a": "1", "b": "2"})
    patched = api.ask("PATCH", NAME, json={"labels": {"a": None, "c": "3"}, "weight": 4})
    assert patched.json()["result"] == "edited"
    declared = api.json(f"{NAME}/declaration")
    assert (declared["labels"], declared["weight"]) == ({"b": "2", "c": "3"}, 4.0)
    refused = api.ask("PATCH", NAME, json={"name": "acme/other"})
    assert (refused.status_code, refused.json()["error"]) == (400, "InvalidInput")
    assert api.ask("PATCH", NAME, json={"connector": "nats"}).status_code == 400


def test_a_dry_run_says_what_would_be_and_does_nothing(api: ApiClient, harness: JobsHarness) -> None:
    assert put(api, query="?dry_run=true").json() | {"changes": []} == {
        "note": None,
        "name": "acme/orders",
        "result": "added",
        "dry_run": True,
        "generation": None,
        "changes": [],
    }
    assert api.get(NAME).status_code == 404
    put(api)
    assert put(api, query="?dry_run=true", weight=3).json()["result"] == "edited"
    for verb in ("pause", "restart"):
        assert api.ask("POST", f"{NAME}/{verb}?dry_run=true").json()["dry_run"] is True
    assert api.ask("DELETE", f"{NAME}?dry_run=true").json()["result"] == "removed"
    assert harness.store.feeds.get("acme/orders").generation == 1


# -- verbs -------------------------------------------------------------------------------------------


def test_feeds_are_paused_resumed_restarted_moved_and_removed(api: ApiClient, harness: JobsHarness) -> None:
    put(api)
    worker = harness.worker("w@host")
    told = api.ask("POST", f"{NAME}/pause", json={"reason": "maintenance"})
    assert (told.status_code, told.json()["result"]) == (200, "paused")
    assert harness.store.feeds.get("acme/orders").spec.target_state is TargetState.PAUSED
    assert api.ask("POST", f"{NAME}/resume").json()["result"] == "resumed"
    assert api.ask("POST", f"{NAME}/restart").json()["generation"] == 4
    assert api.ask("POST", f"{NAME}/move", json={"worker": "w"}).json()["result"] == "moving to w@host"
    assert harness.lease(harness.store.feeds.get("acme/orders")).promised_to == worker.id
    assert api.ask("DELETE", NAME, headers={"Feedq-Reason": "gone"}).status_code == 200
    events = [listed.event for listed in harness.store.history.before(EventFilter(tenant="acme"))]
    kinds = ["feed_removed", "feed_moved", "feed_restarted", "feed_resumed", "feed_paused", "feed_added"]
    assert [event.kind for event in events] == kinds
    assert events[0].detail["by"] == {"who": "token operator-None", "from": "127.0.0.1", "why": "gone"}
    assert events[4].detail["by"]["why"] == "maintenance"


def test_schedules_are_declared_triggered_once_a_key_and_removed(
    api: ApiClient, harness: JobsHarness
) -> None:
    path = "/schedules/acme%2Fnightly"
    added = api.ask("PUT", path, json=SCHEDULE)
    assert (added.status_code, added.json()["result"]) == (201, "added")
    assert api.ask("PUT", path, json=SCHEDULE).json()["result"] == "unchanged"
    stale = added.headers["ETag"]
    assert api.ask("PATCH", path, json={"priority": 5}).json()["result"] == "edited"
    assert api.ask("PUT", path, json=SCHEDULE, headers={"If-Match": stale}).status_code == 412
    keyed = {"Idempotency-Key": "invoice-4711"}
    runs = [api.ask("POST", f"{path}/trigger", headers=keyed, json={"kwargs": {"days": 7}}) for _ in range(2)]
    assert runs[0].json() == runs[1].json()
    assert runs[0].json()["key"] == "trigger:invoice-4711"
    assert api.ask("POST", f"{path}/pause", json={"reason": "why not"}).json()["result"] == "paused"
    assert api.json(path)["pause_reason"] == "why not"
    assert api.ask("POST", f"{path}/resume").status_code == 200
    assert len(api.json(f"{path}/next", params={"count": 3})["ticks"]) == 3
    cancelled = api.ask("POST", f"/runs/{runs[0].json()['id']}/cancel")
    assert cancelled.json()["state"] == RunState.CANCELLED
    past = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T03:00:00Z"}
    assert api.ask("POST", f"{path}/backfill", json=past).json()["made"] == 3
    assert api.ask("POST", f"{path}/backfill", json=past).json()["existing"] == 3
    assert api.ask("POST", f"{path}/purge").json()["cancelled"] == 3
    assert api.ask("DELETE", path).json()["result"] == "removed"


def test_tokens_are_given_out_by_admins_alone(client_of: MakeClient, backend: ApiBackend) -> None:
    admin, operator = client_of("admin"), client_of("operator")
    asked = {"name": "ci", "role": "viewer", "days": 1}
    assert operator.ask("POST", "/tokens", json=asked).status_code == 403
    made = admin.ask("POST", "/tokens", json=asked)
    assert made.status_code == 201
    with ApiClient(make_app(backend), token=made.json()["token"]) as ci:
        assert ci.get("/feeds").status_code == 200
        assert [t["name"] for t in admin.json("/tokens")["tokens"]] == ["admin-None", "ci", "operator-None"]
        assert admin.ask("DELETE", "/tokens/ci").status_code == 200
        assert ci.get("/feeds").status_code == 401


# -- whose it is -------------------------------------------------------------------------------------


# -- many of them ------------------------------------------------------------------------------------


def bulk(api: ApiClient, verb: str, selection: Any, *, dry_run: bool = False, **given: Any) -> httpx.Response:
    asked = {"verb": verb, "selection": selection, **given}
    return api.ask("POST", f"/bulk/feeds?dry_run={dry_run}", json=asked)


def test_what_is_done_to_many_is_said_first_and_reported_for_each(
    api: ApiClient, harness: JobsHarness
) -> None:
    for number in range(5):
        harness.feed(f"acme/{number}", tenant="acme")
    harness.feed("beta/x", tenant="beta")
    mine = {"tenant": "acme"}
    would = bulk(api, "pause", mine, dry_run=True).json()
    assert (would["count"], len(would["done"]), would["dry_run"]) == (5, 5, True)
    assert "is missing" in bulk(api, "pause", mine).json()["detail"]
    assert bulk(api, "pause", mine, count=4).status_code == 412
    assert harness.store.feeds.get("acme/0").generation == 1
    done = bulk(api, "pause", mine, count=5, reason="maintenance").json()
    assert [row["name"] for row in done["done"]] == [f"acme/{n}" for n in range(5)]
    paused = bulk(api, "resume", {"statuses": ["paused"]}, dry_run=True).json()
    assert paused["count"] == 5
    refused = bulk(api, "move", mine, count=5).json()
    assert [row["error"] for row in refused["failed"]] == ["Conflict"] * 5
    assert bulk(api, "remove", {"match": "beta/*"}, count=1).json()["done"][0]["name"] == "beta/x"
    assert bulk(api, "remove", {}, count=0).status_code == 400


def test_many_are_those_of_ones_own_tenant(client_of: MakeClient, harness: JobsHarness) -> None:
    for name in ("acme/a", "beta/b"):
        harness.feed(name, tenant=name[:4])
    acme = client_of("operator", "acme")
    for named in ({"tenant": "beta"}, {"names": ["acme/a", "beta/b"]}):
        for dry_run in (True, False):
            refused = bulk(acme, "remove", named, dry_run=dry_run, count=1)
            assert (refused.status_code, refused.json()["error"]) == (403, "Forbidden")
    assert bulk(acme, "remove", {"match": "beta/*"}, count=1).status_code == 412
    would = bulk(acme, "remove", {"match": "*"}, dry_run=True).json()
    assert [row["name"] for row in would["done"]] == ["acme/a"]
    assert bulk(acme, "remove", {"match": "*"}, count=1).status_code == 200
    assert harness.store.feeds.get("beta/b").removed_at is None
