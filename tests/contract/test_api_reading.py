"""What the API says of feeds, workers, schedules and history, and how it says what is wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
from pydantic import SecretStr

from feedq.api.endpoint import Endpoint
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import Concern, Selector, Status, TargetState
from feedq.core.roles import AccessRole, Caller
from feedq.core.schedule.model import Finish, Offer, RunState
from feedq.core.selection import ALL, Selection
from feedq.settings import Settings
from feedq.verbs import fleet
from feedq.verbs.diagnosis.feed_checks import MORE_LISTED
from feedq.verbs.feeds import list_feeds
from feedq.verbs.registry import At, OpenSink
from feedq.web.buttons import problem_buttons
from tests.api_client import ApiClient
from tests.contract.harness import Harness
from tests.contract.jobs_harness import JobsHarness
from tests.contract.test_store_listing import SOME, WANTED, declare

NAMES = ["acme/a", "acme/b", "beta/größe%2F?", "beta/x"]


@pytest.fixture
def api(jobs: JobsHarness) -> Iterator[ApiClient]:
    endpoint = Endpoint.of(jobs.store, Settings(database_url=SecretStr(jobs.url)))
    token = jobs.store.tokens.add("ada", AccessRole.ADMIN, tenant=None, lasts_s=60)
    with ApiClient(endpoint, token=token) as client:
        yield client


@pytest.fixture
def feeds(jobs: JobsHarness) -> None:
    for name in NAMES:
        tenant, _, short = name.partition("/")
        jobs.feed(name, tenant=tenant, labels={"kind": short, "of": tenant})
    jobs.store.feeds.set_target("acme/b", TargetState.PAUSED)


def names(document: Any) -> list[str]:
    return [view["feed"]["spec"]["name"] for view in document["items"]]


# -- problems ----------------------------------------------------------------------------------------

OF_A_MACHINE = re.compile(
    "database|migrations|connections|notifications|session locks|messages|alerts|broker.*|sink .*|.* on .*"
)
"""Checks of the doctor that try something from where it runs."""


def test_problems_are_all_that_the_tables_tell_and_group_feeds_by_cause_and_tenant(
    api: ApiClient, jobs: JobsHarness
) -> None:
    for n in range(50):
        jobs.feed(f"acme/{n:02}", tenant="acme")
    jobs.feed("beta/x", tenant="beta", selector=Selector(required={"region": "eu"}))
    jobs.execute(
        "INSERT INTO feedq.unmet (feed_id, kind, since, bound, found) "
        "SELECT id, 'max_silence', now(), '20', 30 FROM feedq.feed"
    )
    jobs.worker("w@host")
    jobs.triggered("nightly")
    worker = jobs.job_worker()
    (run,) = jobs.store.jobs.runs.claim(Offer(worker.id, 1)).runs
    jobs.store.jobs.runs.finish(worker.id, [Finish(run.id, run.fence, RunState.FAILED, "boom")])

    warned = [one for one in api.json("/doctor")["checks"] if one["level"] in ("warn", "FAIL")]
    warned = [one for one in warned if not OF_A_MACHINE.fullmatch(one["name"])]
    assert warned == api.json("/status")["warnings"]
    problems = api.json("/problems")["items"]
    assert {one["name"] for one in problems} == {one["name"] for one in warned}
    assert {"failed runs", "expectation", "waiting"} <= {one["name"] for one in problems}
    (failed,) = (one["detail"] for one in problems if one["name"] == "failed runs")
    assert failed == "the last run of 1 schedule did not succeed: nightly"
    silent = [one for one in problems if one["name"] == "expectation"]
    assert [(one["tenant"], one["feeds"], one["feed"]) for one in silent] == [
        ("acme", 50, None),
        ("beta", 1, "beta/x"),
    ]
    found = api.json("/feeds", params={"tenant": silent[0]["select"]["tenant"], "unmet": "true"})
    assert len(found["items"]) == 50


# -- lists -------------------------------------------------------------------------------------------


def test_a_page_goes_on_behind_the_last_whatever_was_added_and_removed_since(
    api: ApiClient, jobs: JobsHarness, feeds: None
) -> None:
    first = api.json("/feeds", params={"limit": 2})
    assert names(first) == ["acme/a", "acme/b"]
    jobs.store.feeds.remove("acme/b")
    jobs.feed("acme/aa")
    assert names(api.json("/feeds", params={"cursor": first["next"]}))[-1] == "beta/x"
    assert "acme/aa" not in names(api.json("/feeds", params={"cursor": first["next"]}))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"statuses": "paused"}, ["acme/b"]),
        ({"statuses": ["paused", "waiting"]}, None),
        ({"labels": "kind=x"}, ["beta/x"]),
        ({"labels": ["kind=x", "of=acme"]}, []),
        ({"text": "ACME/A"}, ["acme/a"]),
        ({"match": "beta/*"}, ["beta/größe%2F?", "beta/x"]),
        ({"worker": "w@host"}, ["acme/a"]),
        ({"tenant": "acme", "statuses": "waiting"}, []),
    ],
)
def test_a_filter_finds_those_to_which_all_of_it_applies(
    api: ApiClient, jobs: JobsHarness, feeds: None, asked: dict[str, Any], found: list[str] | None
) -> None:
    jobs.run(jobs.store.feeds.get("acme/a"), jobs.worker("w@host"))
    expected = [n for n in NAMES if n != "acme/a"] if found is None else found
    assert names(api.json("/feeds", params=asked)) == sorted(expected)


# -- what is wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/feeds/none", 404, "no feed named 'none'; `feedq feed list` shows them all"),
        ("/feeds/a%00b", 400, "names and texts must not contain a NUL character (U+0000)"),
        ("/feeds?tennant=acme", 400, "unknown argument 'tennant'; did you mean tenant?"),
        ("/feeds?statuses=well", 400, r"select.statuses\[0\]: invalid enum value .well."),
        ("/feeds?limit=0", 400, "limit: expected `int` >= 1"),
        ("/feeds?cursor=" + "W1tb" * 400, 400, "cursor: does not belong to this list; .*"),
        ("/schedules/s/next?declared=" + "[" * 1_400, 400, "declared: is not JSON: nested too deeply"),
        ("/feeds?labels=x", 400, "labels: 'x' must be written as key=value"),
        ("/events?since=1288-11-16T05:55:30%2B19:18", 400, "since: must lie in the years 1970 to 2999"),
        ("/connectors/none", 400, "unknown connector 'none'.*"),
        ("/nothing", 404, "there is nothing at this address; openapi.json lists what there is"),
    ],
)
def test_an_error_is_a_problem_in_the_words_of_the_command(
    api: ApiClient, path: str, status: int, said: str
) -> None:
    answer = api.get(path)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.status_code == status == answer.json()["status"]
    assert answer.json()["detail"] == said or re.fullmatch(said, answer.json()["detail"]), answer.text


def test_a_database_that_is_away_is_503() -> None:
    url = "postgresql://me:hunter2@127.0.0.1:1/feedq"
    store = PostgresStore(url)
    with ApiClient(Endpoint.of(store, Settings(database_url=SecretStr(url))), token="feedq_any") as api:
        answer = api.get("/feeds")
    store.close()
    assert (answer.status_code, answer.json()["error"]) == (503, "Unavailable")
    assert "hunter2" not in answer.text


# -- status, problems and lists agree ----------------------------------------------------------------


@pytest.fixture
def at(harness: Harness, control_database_url: str) -> At:
    """A fleet with a feed of each kind, none of which is being removed."""
    declare(control_database_url, harness, [one for one in SOME if one[0] in WANTED[:2]])
    harness.execute(
        "INSERT INTO feedq.unmet (feed_id, kind, since, bound, found) "
        "SELECT id, 'max_silence', now(), '20', 30 FROM feedq.feed WHERE mod(id, 3) = 0"
    )
    return At(harness.store, Settings(), Caller("me", AccessRole.ADMIN), cast("OpenSink", None))


def counted(at: At, select: Selection) -> Counter[Status]:
    """Feeds of a selection by status, going by their list."""
    found: list[Status] = []
    cursor = None
    while True:
        page = list_feeds(at, select=select, limit=100, cursor=cursor)
        found += [view.status for view in page.items]
        if (cursor := page.next) is None:
            return Counter(found)


def test_status_problems_and_lists_count_the_same_feeds(at: At) -> None:
    listed, status = counted(at, ALL), fleet.show_status(at)
    assert {*listed} >= {*Status} - {Status.REMOVING}
    assert Counter(status.numbers.by_status) == listed
    problems = fleet.list_problems(at).items
    of_problems = Counter[str]()
    for problem in problems:
        of_problems[problem.name] += problem.feeds
    of_warnings = Counter[str]()
    for warning in status.warnings:
        of_warnings[warning.name] += warning.feeds
    assert of_problems == of_warnings
    advice = next(one.advice for one in problems if one.name == Status.WAITING and one.select is not None)
    assert advice.endswith("--status waiting` lists all that wait")
    assert {name: of_problems[name] for name in listed if of_problems[name]} == {
        name: count for name, count in listed.items() if of_problems[name]
    }
    for found in (*problems, *status.warnings):
        if found.select is not None:
            total = counted(at, found.select).total()
            assert total >= found.feeds if found.name in MORE_LISTED else total == found.feeds, found


def test_no_button_of_a_problem_acts_on_feeds_that_it_does_not_count(at: At) -> None:
    offered = [one for one in fleet.list_problems(at).items if one.select and problem_buttons(one)]
    assert {one.name for one in offered} >= {Status.FAILED, Concern.EXPECTATION}
    for one in offered:
        assert one.select is not None
        assert counted(at, one.select).total() == one.feeds, one
