"""What the API changes, under which preconditions, and that it is changed once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from feedq.api.endpoint import Endpoint
from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.core.roles import AccessRole
from feedq.core.schedule.model import Schedule
from feedq.core.schedule.spec import ScheduleSpec
from feedq.settings import Settings
from tests.api_client import ApiClient
from tests.contract.jobs_harness import JobsHarness

NAME = "acme/orders"
DECLARED = {
    "name": NAME,
    "tenant": "acme",
    "connector": "tcp",
    "source": {"url": "tcp://127.0.0.1:7001"},
    "sink": {"table": "orders"},
}
TIMES = 40


@pytest.fixture
def endpoint(jobs: JobsHarness) -> Endpoint:
    return Endpoint.of(jobs.store, Settings(database_url=SecretStr(jobs.url)))


MakeClient = Callable[..., ApiClient]


@pytest.fixture
def client_of(endpoint: Endpoint) -> Iterator[MakeClient]:
    """Clients by role and tenant."""
    made: list[ApiClient] = []

    def make(role: str, tenant: str | None = None) -> ApiClient:
        token = endpoint.at.store.tokens.add(f"{role}-{tenant}", AccessRole(role), tenant=tenant, lasts_s=60)
        made.append(ApiClient(endpoint, token=token))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def api(client_of: MakeClient) -> ApiClient:
    return client_of("operator")


def declare(api: ApiClient, *, headers: Any = None, asked: Any = None, **changes: Any) -> httpx.Response:
    return api.ask(
        "POST", "/declarations", json={"feeds": [DECLARED | changes], **(asked or {})}, headers=headers
    )


def changes_of(answer: httpx.Response) -> list[tuple[str, str, str]]:
    """What was changed, and the error if it could not be."""
    assert answer.status_code == 200, answer.text
    return [(one["kind"], one["action"], one["error"] or "") for one in answer.json()["changes"]]


def act(
    api: ApiClient, action: str, *, select: Any = None, headers: Any = None, **more: Any
) -> httpx.Response:
    asked = {"action": action, "select": select or {"names": [NAME]}, **more}
    return api.ask("POST", "/feeds/act", json=asked, headers=headers)


# -- declaring ---------------------------------------------------------------------------------------


def test_what_is_declared_is_added_changed_or_left_alone(api: ApiClient) -> None:
    added = declare(api)
    assert changes_of(added) == [("feed", "add", "")]
    again = declare(api)
    assert (changes_of(again), again.json()["unchanged"]) == ([], 1)
    changed = declare(api, weight=2)
    assert changed.json()["changes"][0]["options"] == [{"option": "weight", "before": 1.0, "after": 2.0}]
    (shown,) = api.json("/declarations/feeds", params={"names": NAME})["items"]
    assert changed.headers["ETag"] == f'"{shown["etag"]}"' != added.headers["ETag"]
    assert shown["declaration"] == DECLARED | {"weight": 2.0}


def test_a_schedule_that_somebody_else_changes_in_the_same_moment_is_left_as_they_made_it(
    api: ApiClient, jobs: JobsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    nightly = {"name": "acme/nightly", "task": "acme.jobs.cleanup", "every": "1h"}
    api.ask("POST", "/declarations", json={"schedules": [nightly]})
    edit = ScheduleStore.edit

    def edited_before(store: ScheduleStore, name: str, spec: ScheduleSpec, **how: Any) -> Schedule:
        edit(store, name, spec.model_copy(update={"every": 7200.0}))
        return edit(store, name, spec, **how)

    with monkeypatch.context() as patched:
        patched.setattr(ScheduleStore, "edit", edited_before)
        late = api.ask("POST", "/declarations", json={"schedules": [nightly | {"every": "3h"}]})
    assert changes_of(late) == [("schedule", "change", "Outdated")]
    assert jobs.schedules.get("acme/nightly").spec.every == 7200.0


def test_what_is_to_be_changed_may_be_expected_to_be_of_a_version(api: ApiClient, jobs: JobsHarness) -> None:
    assert declare(api, headers={"If-Match": "*"}).status_code == 412
    etag = declare(api).headers["ETag"]
    assert declare(api, headers={"If-Match": etag}, weight=2).status_code == 200
    for dry_run in (True, False):
        late = declare(api, headers={"If-Match": etag}, weight=3, asked={"dry_run": dry_run})
        assert late.status_code == 412
        assert "is at generation 2 by now, not 1" in late.json()["detail"]
        for action in ("remove", "pause", "restart"):
            assert act(api, action, headers={"If-Match": etag}, dry_run=dry_run).status_code == 412
    assert declare(api, headers={"If-Match": "17"}).status_code == 400
    other = [DECLARED, DECLARED | {"name": "acme/other"}]
    several = api.ask("POST", "/declarations", json={"feeds": other}, headers={"If-Match": etag})
    assert (several.status_code, several.json()["error"]) == (400, "InvalidInput")
    jobs.store.feeds.remove(NAME)
    anew = declare(api)
    assert "removed and declared again" in declare(api, headers={"If-Match": etag}, weight=9).json()["detail"]
    assert anew.headers["ETag"] != etag


def test_of_many_edits_of_one_version_at_once_one_is_made(api: ApiClient, jobs: JobsHarness) -> None:
    etag = declare(api).headers["ETag"]
    with ThreadPoolExecutor(16) as threads:
        answers = list(
            threads.map(lambda n: declare(api, headers={"If-Match": etag}, weight=n + 2), range(TIMES))
        )
    made = [one for one in answers if one.status_code == 200 and changes_of(one) == [("feed", "change", "")]]
    assert len(made) == 1
    assert jobs.store.feeds.get(NAME).generation == 2


def test_many_equal_declarations_at_once_make_one_generation(api: ApiClient, jobs: JobsHarness) -> None:
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: declare(api), range(TIMES)))
    changes = [change for answer in answers for change in changes_of(answer)]
    assert changes.count(("feed", "add", "")) == 1
    assert set(changes) <= {("feed", "add", ""), ("feed", "add", "Conflict")}
    assert jobs.store.feeds.get(NAME).generation == 1


def test_one_wrong_declaration_keeps_all_from_being_made(api: ApiClient) -> None:
    wrong = DECLARED | {"name": "acme/wrong", "connector": "nats"}
    for feeds, said in (
        ([DECLARED, wrong], "feed 'acme/wrong': "),
        ([DECLARED, DECLARED], f"feed '{NAME}': is declared or removed more than once"),
        ([DECLARED, {"name": "acme/other"}], "feed 'acme/other': connector: "),
        ([DECLARED, "acme/other"], "feed: must be a mapping"),
    ):
        refused = api.ask("POST", "/declarations", json={"feeds": feeds})
        assert (refused.status_code, refused.json()["error"]) == (400, "InvalidInput")
        assert said in refused.json()["detail"]
    gone = api.ask("POST", "/declarations", json={"feeds": [DECLARED], "remove": {"feeds": ["acme/none"]}})
    assert (gone.status_code, gone.json()["detail"]) == (404, "no feed named 'acme/none'")
    assert api.json("/feeds")["items"] == []


def test_a_misspelt_key_is_refused_wherever_it_stands(api: ApiClient) -> None:
    declare(api)
    for asked, said in (
        (
            {"action": "remove", "select": {"name": [NAME]}},
            "unknown argument 'select.name'; did you mean names?",
        ),
        ({"action": "pause", "selection": {}}, "unknown argument 'selection'; did you mean select?"),
    ):
        refused = api.ask("POST", "/feeds/act", json=asked)
        assert (refused.status_code, refused.json()["detail"]) == (400, said)
    pruned = api.ask("POST", "/declarations", json={"remove": {"feed": [NAME]}})
    assert pruned.json()["detail"] == "unknown argument 'remove.feed'; did you mean feeds?"


def test_what_is_not_declared_is_pruned_within_one_tenant(client_of: MakeClient, jobs: JobsHarness) -> None:
    for name in ("acme/old", "beta/x"):
        jobs.feed(name, tenant=name[:4])
    acme = client_of("operator", "acme")
    would = declare(acme, asked={"prune": True, "dry_run": True})
    assert [(one["action"], one["name"]) for one in would.json()["changes"]] == [
        ("add", NAME),
        ("remove", "acme/old"),
    ]
    assert declare(acme, asked={"prune": True, "tenant": "beta"}).status_code == 403
    assert declare(acme, asked={"prune": True}).status_code == 200
    assert jobs.store.feeds.get("acme/old").removed_at is not None
    assert jobs.store.feeds.get("beta/x").removed_at is None


def test_nobody_declares_a_feed_into_or_out_of_another_tenant(
    client_of: MakeClient, jobs: JobsHarness
) -> None:
    jobs.feed("beta/x", tenant="beta")
    acme = client_of("operator", "acme")
    for declared in (DECLARED | {"tenant": "beta"}, DECLARED | {"name": "beta/x"}):
        for dry_run in (True, False):
            asked = {"feeds": [declared], "dry_run": dry_run}
            assert acme.ask("POST", "/declarations", json=asked).status_code == 403
    gone = {"remove": {"feeds": ["beta/x"]}}
    assert acme.ask("POST", "/declarations", json=gone).status_code == 403
    assert jobs.store.feeds.get("beta/x").version[1] == 1


# -- many of them ------------------------------------------------------------------------------------


def test_what_is_done_to_many_is_said_first_and_reported_for_each(api: ApiClient, jobs: JobsHarness) -> None:
    for number in range(5):
        jobs.feed(f"acme/{number}", tenant="acme")
    jobs.feed("beta/x", tenant="beta")
    mine = {"tenant": "acme"}
    would = act(api, "pause", select=mine, dry_run=True).json()
    assert (would["count"], len(would["done"]), would["dry_run"]) == (5, 5, True)
    assert "is missing" in act(api, "pause", select=mine).json()["detail"]
    assert act(api, "pause", select=mine, count=4).status_code == 412
    assert jobs.store.feeds.get("acme/0").generation == 1
    done = act(api, "pause", select=mine, count=5).json()
    assert [row["name"] for row in done["done"]] == [f"acme/{n}" for n in range(5)]
    assert act(api, "resume", select={"statuses": ["paused"]}, dry_run=True).json()["count"] == 5
    refused = act(api, "move", select=mine, count=5).json()
    assert [row["error"] for row in refused["failed"]] == ["Conflict"] * 5
    gone = act(api, "remove", select={"match": "beta/*"}, count=1).json()
    assert gone["done"][0]["name"] == "beta/x"
    assert act(api, "remove", select={"failing": False}, count=0).status_code == 400


def test_many_are_those_of_ones_own_tenant(client_of: MakeClient, jobs: JobsHarness) -> None:
    for name in ("acme/a", "beta/b"):
        jobs.feed(name, tenant=name[:4])
    acme = client_of("operator", "acme")
    for named in ({"tenant": "beta"}, {"names": ["acme/a", "beta/b"]}):
        for dry_run in (True, False):
            refused = act(acme, "remove", select=named, dry_run=dry_run, count=1)
            assert (refused.status_code, refused.json()["error"]) == (403, "Forbidden")
    assert act(acme, "remove", select={"match": "beta/*"}, count=1).status_code == 412
    would = act(acme, "remove", select={"match": "*"}, dry_run=True).json()
    assert [row["name"] for row in would["done"]] == ["acme/a"]
    assert act(acme, "remove", select={"match": "*"}, count=1).status_code == 200
    assert jobs.store.feeds.get("beta/b").removed_at is None


def test_a_client_hears_how_far_a_long_change_has_come(api: ApiClient, jobs: JobsHarness) -> None:
    for number in range(3):
        jobs.feed(f"acme/{number}", tenant="acme")
    streamed = act(api, "pause", select={"tenant": "acme"}, count=3, headers={"Accept": "text/event-stream"})
    assert streamed.headers["Content-Type"].startswith("text/event-stream")
    events = [event.split("\n") for event in streamed.text.strip().split("\n\n")]
    assert events[0] == ["event: progress", 'data: {"done":3,"total":3}']
    assert events[-1][0] == "event: answer"
    assert json.loads(events[-1][1].removeprefix("data: "))["count"] == 3
    refused = act(api, "pause", select={"tenant": "acme"}, headers={"Accept": "text/event-stream"})
    assert refused.text.startswith("event: problem\n")


def test_an_event_of_a_stream_is_one_line_whatever_is_in_it(api: ApiClient) -> None:
    declare(api)
    source = {"url": "tcp://127.0.0.1:7001", "hello": "a\u2028b\x85c"}
    headers = {"Accept": "text/event-stream"}
    streamed = declare(api, source=source, headers=headers, asked={"dry_run": True})
    kind, data, *rest = streamed.text.splitlines()
    assert (kind, rest) == ("event: answer", [""])
    (changed,) = json.loads(data.removeprefix("data: "))["changes"]
    assert changed["options"][0]["after"] == source["hello"]


def test_to_declare_one_schedule_among_many_reads_no_others(api: ApiClient, jobs: JobsHarness) -> None:
    jobs.execute(
        "INSERT INTO feedq.schedule (name, declaration) SELECT 's' || n, "
        """jsonb_build_object('name', 's' || n, 'task', 't') FROM generate_series(1, 2000) n"""
    )
    jobs.execute("ANALYZE feedq.schedule")
    declared = {"schedules": [{"name": "s7", "task": "t", "every": "1h"}]}
    answers: list[int] = []

    def declare_one() -> None:
        answers.append(api.ask("POST", "/declarations", json=declared).status_code)

    assert jobs.rows_read_by(declare_one) <= 100
    assert answers == [200]
