"""*Schedules* in ``celery -A feedq flower``: pages, buttons and API, and who may press what."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import psycopg2
import pytest

from feedq.control.store import migrate
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import NewWorker
from feedq.core.schedule.model import (
    ClaimedRun,
    Cron,
    Every,
    Finish,
    Job,
    Offer,
    Overlap,
    RunState,
    ScheduleSpec,
)
from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from tests.cluster import Cluster
from tests.flower import Answer, Flower, StartFlower

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

NASTY = (
    "<script>alert(1)</script>",
    "a\"b'c&d<img/src=x/onerror=alert(1)>",
    "acme/../..//x?y=1&z#%41/trigger",
    "größe/{{1+1}}/{%raw%}",
)
ROLLUP = "acme/rollup"
BUTTONS = "acme/buttons"
NAMES = sorted((*NASTY, ROLLUP, BUTTONS))
LOGIN = "ada:lovelace"
CROSS_SITE = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}
BY_NAME = f"schedules/{quote(BUTTONS, safe='')}"
TRIGGER = f"{BY_NAME}/trigger"
PAGES = ("/schedules", f"/schedule?name={quote(ROLLUP, safe='')}")
API = ("/api/v1/schedules", f"/api/v1/schedules/{quote(ROLLUP, safe='')}", "/api/v1/runs", "/api/v1/runs/1")


@pytest.fixture(scope="module")
def migrated_url(postgres: Postgres) -> Iterator[str]:
    url = postgres.create_database("web_schedules")
    migrate.upgrade(url)
    yield url
    postgres.drop_database("web_schedules")


@pytest.fixture(scope="module")
def store(migrated_url: str) -> Iterator[PostgresStore]:
    """Schedules by the names above. One run of each kind of end belongs to the first of them."""
    store = PostgresStore(migrated_url)
    job = Job("acme.roll_up", kwargs={"day": "<b>yesterday</b>", "token": "${ACME_TOKEN}"})
    for name in NAMES:
        timing = Cron("0 2 * * *", "Europe/Berlin") if name != BUTTONS else Every(86_400)
        overlap = Overlap.ALLOW_ALL if name == ROLLUP else Overlap.SKIP
        store.jobs.schedules.add(ScheduleSpec(name, timing, job, overlap=overlap))
    worker = NewWorker(uuid4(), "w1@<b>host</b>", "node.w1", 0, "host", 1, "0", job_slots=4)
    store.workers.register(worker, ttl_s=3600)

    def claimed(key: str) -> ClaimedRun:
        store.jobs.schedules.trigger(ROLLUP, key=key)
        (run,) = store.jobs.runs.claim(Offer(worker.id, 1, (), 0.0)).runs
        return run

    ended = [
        Finish(run.id, run.fence, state, reason)
        for run, state, reason in (
            (claimed("k-done"), RunState.SUCCEEDED, None),
            (claimed("k-bad"), RunState.FAILED, "<i>boom</i> postgresql://u:hunter2@db/x"),
        )
    ]
    assert len(store.jobs.runs.finish(worker.id, ended)) == 2
    claimed("k-running")
    yield store
    store.close()


@pytest.fixture(scope="module")
def control_url(migrated_url: str, store: PostgresStore) -> str:
    """With these schedules in it."""
    return migrated_url


def page_of(name: str) -> str:
    return f"/schedule?name={quote(name, safe='')}"


def names(flower: Flower, arguments: str = "") -> list[str]:
    page = flower.get(f"/schedules?live=1&{arguments}").text
    found = re.findall(r'class="feedq-name[^"]*"><a [^>]*>([^<]*)<', page)
    return [html.unescape(name) for name in found]


def press(
    flower: Flower, path: str, *, login: str = "", headers: dict[str, str] | None = None, body: str = ""
) -> Answer:
    """What a browser sends for a button of the pages."""
    sent = {"Content-Type": "application/json"} if body else {}
    return flower.post(f"/api/v1/{path}", body, login=login, headers=sent | (headers or {}))


def runs_of(store: PostgresStore, name: str) -> list[tuple[str, RunState]]:
    return [(run.key, run.state) for run in store.jobs.schedules.runs(name)]


# -- pages -------------------------------------------------------------------------------------------


def test_schedules_are_listed_by_name_and_filtered_by_how_it_begins(flower: Flower) -> None:
    assert names(flower) == NAMES
    assert names(flower, "prefix=acme%2F") == [name for name in NAMES if name.startswith("acme/")]
    assert names(flower, "prefix=nope") == []


def test_pages_of_schedules_lead_from_one_to_the_next(flower: Flower) -> None:
    found, address = [], "?limit=4"
    for _ in range(2):
        page = flower.get(f"/schedules{address}&live=1").text
        found += [html.unescape(n) for n in re.findall(r'class="feedq-name[^"]*"><a [^>]*>([^<]*)<', page)]
        following = re.findall(r'href="(\?[^"]*)" rel="next"', page)
        address = html.unescape(following[0]) if following else ""
    assert found == NAMES
    assert address == ""


def test_links_lead_to_schedules_whatever_their_names(flower: Flower) -> None:
    links = re.findall(r'href="(/schedule\?name=[^"]*)"', flower.get("/schedules?live=1").text)
    titles = [
        html.unescape(re.findall(r"<h1[^>]*>(.*?)</h1>", flower.get(html.unescape(link)).text)[0])
        for link in links
    ]
    assert titles == NAMES


@pytest.mark.parametrize("live", ["", "&live=1"])
def test_nothing_that_people_typed_becomes_markup(flower: Flower, live: str) -> None:
    pages = ["/schedules?", *(page_of(name) for name in (*NASTY, ROLLUP))]
    pages += [f"/schedules?prefix={quote(name, safe='')}&after={quote(name, safe='')}" for name in NASTY]
    for page in pages:
        answer = flower.get(page + live)
        assert answer.status == 200, page
        for markup in ("<script>alert", "<img/src", "<b>host", "<i>boom", "<b>yesterday", "\"b'c"):
            assert markup not in answer.text, page
        inline = re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=\"|\sstyle=\"|javascript:", answer.text)
        assert inline == [], page


def test_a_schedule_shows_its_runs_its_counts_and_its_declaration(flower: Flower) -> None:
    page = html.unescape(flower.get(page_of(ROLLUP)).text)
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    for shown in (
        "acme/rollup/trigger:k-done",
        "acme/rollup/trigger:k-bad",
        "acme/rollup/trigger:k-running",
        "w1@<b>host</b>",
    ):
        assert shown in page
    assert re.search(r'class="badge text-bg-success">succeeded<', page)
    assert re.search(r'class="badge text-bg-danger">failed<', page)
    assert "postgresql://u:***@db/x" in page
    assert "hunter2" not in page
    assert "cron 0 2 * * * Europe/Berlin" in text
    assert "${ACME_TOKEN}" in page
    assert "acme.roll_up" in text
    failed = html.unescape(flower.get(page_of(ROLLUP) + "&state=failed&live=1").text)
    assert "acme/rollup/trigger:k-bad" in failed
    assert "acme/rollup/trigger:k-done" not in failed


def test_arguments_of_jobs_are_on_the_schedules_own_page_only(flower: Flower) -> None:
    assert "ACME_TOKEN" not in flower.get("/schedules").text
    assert "ACME_TOKEN" not in flower.get("/api/v1/schedules").text
    assert "ACME_TOKEN" not in flower.get("/api/v1/runs").text
    assert "ACME_TOKEN" in flower.get(API[1]).text


def test_one_of_a_later_release_is_listed_with_why_it_cannot_be_read(
    flower: Flower, store: PostgresStore, control_url: str
) -> None:
    store.jobs.schedules.add(ScheduleSpec("later", Every(86_400), Job("acme.later")))
    with closing(psycopg2.connect(control_url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("""UPDATE feedq.schedule SET policy = '{"warp": 9}' WHERE name = 'later'""")
    page = html.unescape(flower.get("/schedules?live=1&prefix=later").text)
    (row,) = flower.get("/api/v1/schedules?prefix=later").json["schedules"]
    assert ">(cannot be read)<" in page
    assert str(row["unreadable"]).startswith("schedule 'later' is stored in a way that this release")
    assert page.count(str(row["unreadable"])) == 2, "in sight, and as the title of its task"
    assert (row["state"], row["pause_reason"]) == ("active", None)
    store.jobs.schedules.remove("later")


def test_what_does_not_exist_is_said_so(flower: Flower) -> None:
    assert flower.get("/schedule?name=nope").status == 404
    assert flower.get("/schedule").status == 400
    wrong = flower.get(page_of(ROLLUP) + "&state=dead&live=1")
    assert wrong.status == 400
    assert str(wrong.json["error"]).startswith("state='dead': must be one of waiting")


# -- buttons -----------------------------------------------------------------------------------------


def test_a_button_pressed_twice_triggers_once(flower: Flower, store: PostgresStore) -> None:
    """Nobody has a role here, so that whoever may change anything may press these."""
    before = len(runs_of(store, BUTTONS))
    for _ in range(2):
        answer = press(flower, TRIGGER, headers={"Idempotency-Key": "web-once"})
        assert (answer.status, answer.json["key"]) == (200, "trigger:web-once"), answer.text
        assert answer.json["key"] in flower.get(page_of(BUTTONS)).text
    assert len(runs_of(store, BUTTONS)) == before + 1
    cancel = f"runs/{answer.json['id']}/cancel"
    assert f'data-action="{cancel}"' in flower.get(page_of(BUTTONS)).text
    assert press(flower, cancel).status == 200
    assert ("trigger:web-once", RunState.CANCELLED) in runs_of(store, BUTTONS)
    assert press(flower, cancel).status == 409, "it has ended"
    for others in (f"{BY_NAME}/purge", "feeds/x/pause"):
        assert press(flower, others).status == 403


def test_pause_and_resume_show_on_the_page_that_comes_back(flower: Flower, store: PostgresStore) -> None:
    pause, resume = f"{BY_NAME}/pause", f"{BY_NAME}/resume"
    body = json.dumps({"until": "2126-01-01T00:00:00Z"})
    assert press(flower, pause, headers={"Feedq-Reason": "a%20visit"}, body=body).status == 200
    page = flower.get(page_of(BUTTONS)).text
    assert 'text-bg-secondary">paused<' in page
    assert f'data-action="{resume}"' in page
    assert store.jobs.schedules.get(BUTTONS).pause_reason == "a visit"
    assert press(flower, resume).status == 200
    assert f'data-action="{pause}"' in flower.get(page_of(BUTTONS)).text


def test_another_sites_page_can_press_nothing(flower: Flower, store: PostgresStore) -> None:
    before = runs_of(store, BUTTONS)
    for headers in (CROSS_SITE, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "same-site"}):
        assert press(flower, TRIGGER, headers=headers).status == 403
        assert press(flower, "runs/1/cancel", headers=headers).status == 403
    assert runs_of(store, BUTTONS) == before


def test_without_a_login_pages_may_be_read_and_nothing_changed(
    start_flower: StartFlower, store: PostgresStore
) -> None:
    closed = start_flower()
    before = runs_of(store, BUTTONS)
    assert {closed.get(path).status for path in PAGES} == {200}
    assert {closed.get(path).status for path in API} == {401}
    assert 'data-refused="without a login nothing can be changed' in closed.get(page_of(BUTTONS)).text
    assert press(closed, TRIGGER).status == 401
    assert runs_of(store, BUTTONS) == before


def test_a_flower_that_only_reads_changes_nothing(start_flower: StartFlower, store: PostgresStore) -> None:
    reading = start_flower("--read_only", FLOWER_UNAUTHENTICATED_API="true")
    why = "this Flower was started with --read_only"
    assert f'data-refused="{why}"' in reading.get(page_of(BUTTONS)).text
    assert (press(reading, TRIGGER).status, why in press(reading, TRIGGER).text) == (403, True)
    assert press(reading, f"{BY_NAME}/pause").status == 403
    assert store.jobs.schedules.get(BUTTONS).state == "active"


def test_a_login_and_a_prefix_hold_for_pages_buttons_and_api(
    start_flower: StartFlower, store: PostgresStore
) -> None:
    flower = start_flower(f"--basic-auth={LOGIN}", "--url-prefix=watch")
    for path in (*PAGES, *API):
        assert flower.get(f"/watch{path}").status == 401, path
        assert flower.get(f"/watch{path}", login=LOGIN).status == 200, path
        assert flower.get(path, login=LOGIN).status == 404, path
    page = flower.get(f"/watch{page_of(BUTTONS)}", login=LOGIN)
    addresses = re.findall(r'(?:src|href|action)="(/[^"]*)"', page.text)
    assert all(address.startswith("/watch/") for address in addresses), addresses
    path, once = f"/watch/api/v1/{TRIGGER}", {"Idempotency-Key": "behind-login"}
    assert flower.post(path, headers=once).status == 401
    assert flower.post(path, login=LOGIN, headers=CROSS_SITE | once).status == 403
    assert ("trigger:behind-login", RunState.WAITING) not in runs_of(store, BUTTONS)
    answer = flower.post(path, login=LOGIN, headers=once)
    assert (answer.status, answer.json["key"]) == (200, "trigger:behind-login")
    cancelled = flower.post(f"/watch/api/v1/runs/{answer.json['id']}/cancel", login=LOGIN)
    assert (cancelled.status, cancelled.json["state"]) == (200, "cancelled")


# -- API ---------------------------------------------------------------------------------------------


def test_the_api_says_what_the_commands_say(
    flower: Flower, valkey: Valkey, control_url: str, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path, database_url=control_url, broker_url=valkey.url(), migrate=False)
    said = flower.get("/api/v1/schedules").json
    assert said["schedules"] == json.loads(cluster.feedq("schedule", "list", "--json"))
    detail = flower.get(API[1]).json
    shown = json.loads(cluster.feedq("schedule", "show", ROLLUP, "--json"))
    assert detail == shown
    asked = f"schedule={quote(ROLLUP, safe='')}&state=failed&state=succeeded"
    runs = flower.get(f"/api/v1/runs?{asked}").json["runs"]
    listed = cluster.feedq("schedule", "runs", ROLLUP, "--state=failed", "--state=succeeded", "--json")
    assert runs == json.loads(listed)
    assert [run["state"] for run in runs] == ["failed", "succeeded"]
    one = flower.get(f"/api/v1/runs/{runs[0]['id']}").json
    assert one == runs[0]


def test_the_status_says_what_the_command_says_of_schedules_and_runs(
    flower: Flower, valkey: Valkey, control_url: str, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path, database_url=control_url, broker_url=valkey.url(), migrate=False)
    said, shown = flower.get("/api/v1/status").json, json.loads(cluster.feedq("status", "--json"))
    assert said["schedules"] == shown["schedules"]
    assert shown["schedules"]["total"] == len(NAMES)
    aged = {"oldest_due_s": None}  # a moment lies between the two
    assert {**said["runs"], **aged} == {**shown["runs"], **aged}
    assert (shown["runs"]["running"], shown["runs"]["slots"]) == (1, 4)


def test_the_api_knows_schedules_by_whatever_name_they_have(flower: Flower, store: PostgresStore) -> None:
    for name in NASTY:
        assert flower.get(f"/api/v1/schedules/{quote(name, safe='')}").json["name"] == name
    triggered = press(flower, f"schedules/{quote(NASTY[2], safe='')}/trigger").json
    assert (triggered["schedule"], triggered["kind"]) == (NASTY[2], "trigger")
    assert store.jobs.schedules.cancel_run(int(str(triggered["id"]))).state is RunState.CANCELLED
