"""``celery -A feedq flower`` as it is used: pages, API, login, prefix, and a database that is away."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit
from uuid import UUID, uuid4

import pytest

from feedq.control.store import migrate
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import FeedBackfill, FeedSpec, NewWorker, Selector, TargetState, WorkerTarget
from feedq.core.schedule.model import ClaimedRun, Finish, Offer, RunState
from feedq.core.schedule.spec import Overlap
from feedq.core.tap import TapPart, TappedRecord
from feedq.local.postgres import Postgres
from tests.cluster import ROOT, wait_until
from tests.flower import Answer, Flower, StartFlower
from tests.proxy import PostgresProxy
from tests.schedules import Keys, schedule_spec

NASTY = (
    "<script>alert(1)</script>",
    "a\"b'c&d<img/src=x/onerror=alert(1)>",
    "acme/../..//x?y=1&z#%41",
    "größe/{{1+1}}/{%raw%}",
)
"""Names of feeds, and of schedules."""
ROLLUP, BUTTONS = "acme/rollup", "acme/buttons"
SCHEDULES = sorted((*NASTY, ROLLUP, BUTTONS))
OF_BUTTONS = f"name={quote(BUTTONS, safe='')}"


def page_of(what: str, name: str) -> str:
    return f"/{what}?name={quote(name, safe='')}"


PAGES = (
    *("/problems", "/feeds", "/fleet", page_of("feed", "acme/orders")),
    *("/schedules", page_of("schedule", ROLLUP)),
)
API = (
    *("/api/v1/feeds", "/api/v1/feeds/acme%2Forders", "/api/v1/workers", "/api/v1/status"),
    *("/api/v1/schedules", f"/api/v1/schedules/{quote(ROLLUP, safe='')}", "/api/v1/runs", "/api/v1/runs/1"),
)


@pytest.fixture(scope="module")
def control_url(postgres: Postgres) -> Iterator[str]:
    """A control database with feeds, two workers that nobody runs, schedules, and a run of each kind of end."""
    url = postgres.create_database("web")
    migrate.upgrade(url)
    with closing(PostgresStore(url)) as store:
        for name in (*NASTY, "acme/orders"):
            source = {"url": "tcp://127.0.0.1:1", "secrets": {"token": "${env:ACME_TOKEN}"}}
            selector = Selector(required={"region": "<eu>"})
            spec = FeedSpec(
                name=name,
                connector="tcp",
                source=source,
                sink={"table": "landed"},
                tenant=name[:4],
                selector=selector,
            )
            store.feeds.add(spec)
        store.feeds.set_target(NASTY[2], TargetState.PAUSED)
        for number in (1, 2):
            worker = NewWorker(
                id=uuid4(),
                name=f"w{number}@<b>host</b>",
                queue=f"node.w{number}",
                capacity=100,
                host="<i>host</i>",
                pid=number,
                version="0.1.0",
                labels={"region": "<eu>"},
                job_slots=4,
            )
            store.workers.register(worker, ttl_s=3600)
        schedule(store, worker.id)
        store.workers.set_target(worker.id, WorkerTarget.CORDONED)
    yield url
    postgres.drop_database("web")


def schedule(store: PostgresStore, worker_id: UUID) -> None:
    job: Keys = {"task": "acme.roll_up", "kwargs": {"day": "<b>yesterday</b>", "token": "${JOB_TOKEN}"}}
    for name in SCHEDULES:
        timing: Keys = (
            {"cron": ("0 2 * * *",), "zone": "Europe/Berlin"} if name != BUTTONS else {"every": 86_400}
        )
        overlap = Overlap.ALLOW_ALL if name == ROLLUP else Overlap.SKIP
        store.jobs.schedules.add(schedule_spec(name, **timing, **job, overlap=overlap))
    claimed: list[ClaimedRun] = []
    for key in ("k-done", "k-bad", "k-running"):
        store.jobs.schedules.trigger(ROLLUP, key=key)
        claimed += store.jobs.runs.claim(Offer(worker_id, 1)).runs
    done, bad, _ = claimed
    ended = [
        Finish(done.id, done.fence, RunState.SUCCEEDED, None),
        Finish(bad.id, bad.fence, RunState.FAILED, "<i>boom</i> postgresql://u:hunter2@db/x"),
    ]
    assert len(store.jobs.runs.finish(worker_id, ended).ended) == 2


@pytest.fixture
def store(control_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(control_url)) as opened:
        yield opened


def names(flower: Flower, page: str, arguments: str = "") -> list[str]:
    """The names that a list shows."""
    text = flower.get(f"{page}?live=1&{arguments}").text
    found = re.findall(r'class="feedq-name[^"]*"><a [^>]*>([^<]*)<', text)
    return [html.unescape(name) for name in found]


# -- pages -------------------------------------------------------------------------------------------


def test_every_page_of_ours_and_of_flower_has_our_tabs(flower: Flower) -> None:
    for path in (*PAGES, "/workers", "/tasks", "/broker"):
        answer = flower.get(path)
        assert answer.status == 200, path
        tabs = re.findall(r'class="nav-link[^"]*"\s+href="(/[^"]*)"', answer.text)
        assert tabs == ["/problems", "/feeds", "/fleet", "/schedules", "/workers", "/tasks", "/broker"], path


def test_what_the_pages_load_is_there(flower: Flower) -> None:
    page = flower.get("/feeds").text
    files = re.findall(r'(?:src|href)="([^"]*(?:/static/)[^"]*)"', page)
    assert {"feedq.css", "feedq.js"} <= {urlsplit(file).path.rpartition("/")[2] for file in files}
    assert {flower.get(html.unescape(file)).status for file in files} == {200}


@pytest.mark.parametrize("live", ["", "live=1"])
def test_nothing_that_people_typed_becomes_markup_and_no_page_runs_a_script_but_files(
    flower: Flower, live: str
) -> None:
    pages = ["/problems?", "/feeds?", "/fleet?", "/schedules?", f"{page_of('schedule', ROLLUP)}&"]
    for name in NASTY:
        asked = quote(name, safe="")
        pages += [f"{page_of('feed', name)}&", f"{page_of('schedule', name)}&"]
        pages += [f"/feeds?text={asked}&worker={asked}&", f"/schedules?prefix={asked}&"]
    for page in pages:
        answer = flower.get(page + live)
        assert answer.status == 200, page
        for markup in (
            *("<script>alert", "<img/src", "<b>host", "<i>host", "<eu>", "\"b'c"),
            *("<i>boom", "<b>yesterday"),
        ):
            assert markup not in answer.text, page
        inline = re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=\"|\sstyle=\"|javascript:", answer.text)
        assert inline == [], page
        if not live:
            policy = answer.headers["Content-Security-Policy"]
            assert ("default-src 'none'" in policy, "script-src 'self';" in policy) == (True, True), page


def test_a_tap_through_flower_comes_as_it_lands_and_not_at_its_end(
    start_flower: StartFlower, control_url: str
) -> None:
    flower = start_flower(
        "--basic-auth=ada:x,bob:y", FEEDQ_FLOWER_ROLES='{"ada": "operator:acme", "*": "viewer"}'
    )
    path = f"/api/v1/feeds/{quote(NASTY[2], safe='')}/tap?seconds=600"
    assert flower.get(path, login="bob:y").status == 403
    store = PostgresStore(control_url)
    feed_id = store.feeds.get(NASTY[2]).id
    worker, *_ = store.workers.views()
    asked = urllib.request.Request(flower.base + path)
    asked.add_header("Authorization", f"Basic {base64.b64encode(b'ada:x').decode()}")
    with urllib.request.urlopen(asked, timeout=30) as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        for text in ("first", "second"):
            record = TappedRecord("2026-01-01T00:00:00+00:00", text, 6, False)
            store.taps.put(worker.worker.id, [TapPart(feed_id, 1, (record,))])
            assert any(text in line.decode() for line in iter(stream.readline, b""))
    wait_until(lambda: not store.taps.after(feed_id, 0), limit_s=20, what="the tap ends with who listened")
    store.close()


@pytest.mark.parametrize(
    ("what", "expected"), [("feed", sorted((*NASTY, "acme/orders"))), ("schedule", SCHEDULES)]
)
def test_links_and_the_api_lead_to_what_is_named_whatever_the_name(
    flower: Flower, what: str, expected: list[str]
) -> None:
    links = re.findall(rf'href="(/{what}\?name=[^"]*)"', flower.get(f"/{what}s?live=1").text)
    titles = [
        html.unescape(re.findall(r"<h1[^>]*>(.*?)</h1>", flower.get(html.unescape(link)).text)[0])
        for link in links
    ]
    assert sorted(titles) == expected
    for name in expected:
        assert (
            json.dumps(name, ensure_ascii=False) in flower.get(f"/api/v1/{what}s/{quote(name, safe='')}").text
        )


def test_a_feed_shows_its_declaration_its_secrets_as_references_and_its_history(flower: Flower) -> None:
    page = html.unescape(flower.get(f"/feed?name={quote(NASTY[2], safe='')}").text)
    assert "${env:ACME_TOKEN}" in page
    assert "table: landed" in page
    assert "region: <eu>" in page
    assert "feed_added" in page
    assert "feed_paused" in page
    assert re.search(r'class="badge [^"]*">paused<', page)


def test_a_feed_shows_its_backfill_and_the_backfill_its_feed(flower: Flower, control_url: str) -> None:
    at = f"/feed?name={quote('acme/orders', safe='')}"
    assert ">Backfill</button>" in flower.get(at).text
    store = PostgresStore(control_url)
    feed = store.feeds.get("acme/orders")
    source = {**feed.spec.source, "cursor": "/seq"}
    filling = feed.spec.model_copy(update={"name": "acme/orders~backfill", "source": source})
    store.backfills.begin(feed, filling, FeedBackfill(feed.id, 100, 500))
    try:
        live = f"{at}&live=1"
        wait_until(lambda: "Cancel backfill" in flower.get(live).text, limit_s=10, what="it is shown")
        page = flower.get(live).text
        assert re.search(r'<meter min="0" max="1" value="0.0"[^>]*></meter> 0 %', page)
        assert "up to 500" in page
        page = flower.get(f"{at}~backfill&live=1").text
        assert f'A backfill of <a href="{at}">acme/orders</a>' in page
        assert "Change this feed" not in page
    finally:
        store.backfills.cancel(feed)
        store.close()


def test_the_fleet_shows_workers_and_what_is_wrong(flower: Flower) -> None:
    page = html.unescape(flower.get("/fleet").text)
    assert page.count(">active<") == 2
    assert page.count(">cordoned<") == 1
    assert "0 of 100, 0 %" in re.sub(r"<[^>]*>", "", page)
    assert "nobody leads" in page
    assert "no beat leads" in page


def test_filters_and_pages_of_the_list(flower: Flower) -> None:
    def found(arguments: str) -> list[str]:
        return names(flower, "/feeds", arguments)

    assert found("tenant=acme&reverse=true") == ["acme/orders", NASTY[2]]
    assert f"None of {len(NASTY) + 1} feeds match" in flower.get("/feeds?labels=team=none").text
    for order in ("limit=2", "limit=2&order=epoch"):
        shown, following = [], [order]
        while following:
            page = html.unescape(flower.get(f"/feeds?live=1&{following[0]}").text)
            shown += names(flower, "/feeds", following[0])
            following = re.findall(r'href="\?([^"]*)" rel="next"', page)
        assert sorted(shown) == sorted(found(""))
        assert len(shown) == len(NASTY) + 1
    page = html.unescape(flower.get("/feeds?statuses=waiting&limit=2").text)
    (more,) = re.findall(r'href="(\?[^"]*)">8 a page<', page)
    assert found(more[1:]) == found("statuses=waiting")


def test_a_schedule_shows_its_runs_its_counts_and_its_declaration(flower: Flower) -> None:
    page = html.unescape(flower.get(page_of("schedule", ROLLUP)).text)
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert all(f"acme/rollup/trigger:{key}" in page for key in ("k-done", "k-bad", "k-running"))
    assert re.search(r'class="badge text-bg-success">succeeded<', page)
    assert re.search(r'class="badge text-bg-danger">failed<', page)
    assert "postgresql://u:***@db/x" in page
    assert "hunter2" not in page
    assert "cron 0 2 * * * Europe/Berlin" in text
    assert "acme.roll_up" in text
    failed = html.unescape(flower.get(page_of("schedule", ROLLUP) + "&states=failed&live=1").text)
    assert "acme/rollup/trigger:k-bad" in failed
    assert "acme/rollup/trigger:k-done" not in failed


def test_arguments_of_jobs_are_on_the_schedules_own_page_only(flower: Flower) -> None:
    for path in ("/schedules", "/api/v1/schedules", "/api/v1/runs"):
        assert "JOB_TOKEN" not in flower.get(path).text
    for path in (page_of("schedule", ROLLUP), API[5]):
        assert "${JOB_TOKEN}" in flower.get(path).text


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/feed?name=%3Cb%3Enope", 404, "no feed named &#x27;&lt;b&gt;nope&#x27;"),
        ("/feeds?statuses=dead&live=1", 400, "invalid enum value &#x27;dead&#x27;"),
        ("/schedule?name=nope", 404, "no schedule named"),
        ("/schedule", 400, "name"),
        (page_of("schedule", ROLLUP) + "&states=dead&live=1", 400, "invalid enum value &#x27;dead&#x27;"),
        (page_of("feed", "acme/orders") + "&span=year", 400, "invalid enum value &#x27;year&#x27;"),
    ],
)
def test_what_does_not_exist_is_said_so(flower: Flower, path: str, status: int, said: str) -> None:
    answer = flower.get(path)
    assert (answer.status, said in answer.text.replace("&#39;", "&#x27;")) == (status, True), answer.text


def test_reasons_to_wait_are_said_counted_and_lead_to_the_feeds(flower: Flower) -> None:
    assert "The next reconcile pass places it" in flower.get("/feed?name=acme/orders").text
    page = html.unescape(flower.get("/feeds").text)
    (link,) = re.findall(r'Waiting for a worker:\s*<a href="([^"]*)">4 new</a>', page)
    assert "statuses=waiting" in link
    assert flower.get(f"/feeds{link}&live=1").text.count('class="feedq-name') == len(NASTY)


def test_the_api_is_the_same_behind_the_login(start_flower: StartFlower) -> None:
    roles = json.dumps({"ada": "operator", "ben": "viewer:acme"})
    flower = start_flower(
        "--url-prefix=q", FLOWER_BASIC_AUTH="ada:secret,ben:other", FEEDQ_FLOWER_ROLES=roles
    )
    stranger = flower.get("/q/api/v1/feeds")
    assert (stranger.status, stranger.json["error"]) == (401, "Unauthenticated")
    shown = flower.get("/q/api/v1/feeds/acme%2Forders", login="ada:secret")
    assert shown.headers["Etag"] == f'"{shown.json["etag"]}"'
    assert "/api/v1/feeds" in flower.get("/q/api/v1/openapi.json", login="ada:secret").json["paths"]
    assert flower.get("/q/api/v1/workers", login="ada:secret").status == 200
    refused = flower.get("/q/api/v1/workers", login="ben:other")
    assert (refused.status, refused.json["error"]) == (403, "Forbidden")
    mine = flower.get("/q/api/v1/feeds", login="ben:other").json
    assert {view["feed"]["spec"]["tenant"] for view in mine["items"]} == {"acme"}
    # The role that this Flower has in the database is for looking.
    asked = json.dumps({"action": "pause", "select": {"names": ["acme/orders"]}})
    paused = flower.post("/q/api/v1/feeds/act", asked, login="ada:secret")
    assert (paused.status, paused.json["error"]) == (503, "PermissionMissing")


def test_who_has_a_role_of_one_tenant_sees_nothing_of_others_on_any_page(start_flower: StartFlower) -> None:
    roles = json.dumps({"ben": "viewer:acme", "eve": "viewer"})
    flower = start_flower("--basic-auth=ben:x,eve:y", FEEDQ_FLOWER_ROLES=roles)
    refused = "it needs a role over everything"
    for path in PAGES:
        for live in ("", f"{'&' if '?' in path else '?'}live=1"):
            answer = flower.get(path + live, login="ben:x")
            is_theirs = path.startswith("/feed")
            assert (answer.status, refused in answer.text) == ((200, False) if is_theirs else (403, True)), (
                path
            )
            for other in (n for n in NASTY if not n.startswith("acme")):
                assert html.escape(other) not in answer.text, path
            assert flower.get(path + live, login="eve:y").status == 200, path
    for path in (page_of("feed", NASTY[0]), page_of("feed", "nowhere")):
        assert flower.get(path, login="ben:x").status == 404
    assert "None of 2 feeds match" in flower.get("/feeds?text=nobody&live=1", login="ben:x").text
    others = flower.get("/feeds?tenant=gr%C3%B6%C3%9F&live=1", login="ben:x")
    assert (others.status, "None of 2 feeds match" in others.text) == (200, True)
    for kind, of in (("cordon", "name=w1"), ("pause", f"names={quote(NASTY[0], safe='')}")):
        assert "this needs the role operator" in html.unescape(
            flower.get(f"/feedq/ask/{kind}?{of}", login="ben:x").text
        )
        assert flower.post(f"/feedq/ask/{kind}?{of}", login="ben:x").status == 403


# -- buttons -----------------------------------------------------------------------------------------


def press(
    flower: Flower,
    kind: str,
    of: str,
    typed: Mapping[str, str] | None = None,
    *,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """What a browser sends for the dialog of a button."""
    sent = {"Content-Type": "application/x-www-form-urlencoded"}
    return flower.post(f"/feedq/ask/{kind}?{of}", urlencode(typed or {}), headers={**sent, **(headers or {})})


def kept_in(dialog: Answer) -> dict[str, str]:
    """The hidden fields of a dialog."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', dialog.text)
    return {name: html.unescape(value) for name, value in found}


def test_a_button_pressed_twice_triggers_once(flower: Flower, store: PostgresStore) -> None:
    """Nobody has a role here, so that whoever may change anything may press these."""
    opened = flower.get(f"/feedq/ask/trigger?{OF_BUTTONS}")
    assert f"<p>{BUTTONS}</p>" in opened.text, "it names what it triggers"
    kept = kept_in(opened)
    for _ in range(2):
        answer = press(flower, "trigger", OF_BUTTONS, kept)
        assert (answer.status, "data-done" in answer.text) == (200, True), answer.text
    (run,) = store.jobs.schedules.runs(BUTTONS)
    assert run.key == f"trigger:{kept['key']}"
    assert f'id="feedq-cancel-run-{run.id}"' in flower.get(page_of("schedule", BUTTONS)).text
    assert f"<p>{BUTTONS}, " in flower.get(f"/feedq/ask/cancel-run?id={run.id}").text, "and what it cancels"
    assert press(flower, "cancel-run", f"id={run.id}").status == 200
    assert store.jobs.schedules.run(run.id).state is RunState.CANCELLED
    assert press(flower, "cancel-run", f"id={run.id}").status == 409, "it has ended"
    assert press(flower, "pause", "names=acme%2Forders").status == 403
    assert press(flower, "nothing", OF_BUTTONS).status == 404


def test_pause_and_resume_show_on_the_page_that_comes_back(flower: Flower, store: PostgresStore) -> None:
    asked = press(flower, "pause-schedule", OF_BUTTONS, {"until": "tomorrow", "dry_run": "true"})
    assert (asked.status, "until" in asked.text, 'value="tomorrow"' in asked.text) == (200, True, True)
    typed = {"until": "2126-01-01T00:00:00Z", "reason": "a visit"}
    paused = press(flower, "pause-schedule", OF_BUTTONS, typed)
    assert paused.status == 200, paused.text
    page = flower.get(page_of("schedule", BUTTONS)).text
    assert 'text-bg-secondary">paused<' in page
    assert 'id="feedq-resume-schedule-' in page
    assert store.jobs.schedules.get(BUTTONS).pause_reason == "a visit"
    assert press(flower, "resume-schedule", OF_BUTTONS).status == 200
    assert 'id="feedq-pause-schedule-' in flower.get(page_of("schedule", BUTTONS)).text


def test_another_sites_page_can_press_nothing(flower: Flower, store: PostgresStore) -> None:
    for headers in (EVIL, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "same-site"}):
        assert press(flower, "pause-schedule", OF_BUTTONS, headers=headers).status == 403
    assert store.jobs.schedules.get(BUTTONS).state == "active"


def test_a_flower_that_only_reads_changes_nothing(start_flower: StartFlower, store: PostgresStore) -> None:
    reading = start_flower("--read_only", FLOWER_UNAUTHENTICATED_API="true")
    why = "this Flower was started with --read_only"
    assert f'aria-disabled="true" title="{why}"' in reading.get(page_of("schedule", BUTTONS)).text
    refused = press(reading, "pause-schedule", OF_BUTTONS)
    assert (refused.status, why in refused.text) == (403, True)
    refused = reading.post("/api/v1/runs/1/cancel")
    assert (refused.status, why in refused.text) == (403, True)
    assert store.jobs.schedules.get(BUTTONS).state == "active"


# -- login and prefix --------------------------------------------------------------------------------


def test_without_a_login_pages_may_be_read_and_nothing_changed(
    start_flower: StartFlower, store: PostgresStore
) -> None:
    closed = start_flower()
    assert {closed.get(path).status for path in PAGES} == {200}
    assert {closed.get(path).status for path in API} == {401}
    why = 'aria-disabled="true" title="without a login nothing can be changed'
    assert why in closed.get(page_of("schedule", BUTTONS)).text
    assert press(closed, "pause-schedule", OF_BUTTONS).status == 403
    assert store.jobs.schedules.get(BUTTONS).state == "active"


def test_with_a_login_nothing_is_shown_without_it_and_a_prefix_holds_for_everything(
    start_flower: StartFlower,
) -> None:
    login = "ada:lovelace"
    flower = start_flower(f"--basic-auth={login}", "--url-prefix=watch")
    for path in (*PAGES, *(f"{page}{'&' if '?' in page else '?'}live=1" for page in PAGES), *API):
        assert flower.get(f"/watch{path}").status == 401, path
        assert flower.get(f"/watch{path}", login="ada:wrong").status == 401, path
        assert flower.get(f"/watch{path}", login=login).status == 200, path
        assert flower.get(path, login=login).status == 404, path
    page = flower.get("/watch/feeds", login=login).text
    addresses = re.findall(r'(?:src|href|action)="(/[^"]*)"', page)
    assert len(addresses) > 10
    assert all(address.startswith("/watch/") for address in addresses), addresses
    assert flower.get(next(a for a in addresses if "feedq.js" in a)).status == 200
    path = f"/watch/api/v1/schedules/{quote(BUTTONS, safe='')}/trigger"
    once = {"Idempotency-Key": "behind-login"}
    assert flower.post(path, headers=once).status == 401
    assert flower.post(path, login=login, headers=EVIL | once).status == 403
    answer = flower.post(path, login=login, headers=once)
    assert (answer.status, answer.json["key"]) == (200, "trigger:behind-login")
    cancelled = flower.post(f"/watch/api/v1/runs/{answer.json['id']}/cancel", login=login)
    assert (cancelled.status, cancelled.json.get("state")) == (200, "cancelled"), cancelled.text


def test_with_somebody_elses_login_strangers_are_sent_there(start_flower: StartFlower) -> None:
    flower = start_flower(
        "--auth=ada@example.com",
        "--auth-provider=flower.views.auth.GoogleAuth2LoginHandler",
        "--oauth2-key=key",
        "--oauth2-secret=secret",
        "--oauth2-redirect-uri=http://127.0.0.1/login",
    )
    for path in (*PAGES, "/feeds?live=1"):
        answer = flower.get(path)
        assert answer.status == 302, path
        assert answer.headers["Location"].startswith("/login?"), path
        assert "acme" not in answer.text
    for path in API:
        answer = flower.get(path)
        assert (answer.status, answer.json["detail"]) == (401, "log in to Flower first"), path


# -- pages of other sites ----------------------------------------------------------------------------

EVIL = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
FLOWERS_CHANGES = (
    "/api/task/send-task/feedq.reconcile",
    "/api/task/async-apply/feedq.reconcile",
    "/api/task/revoke/0",
    "/api/task/timeout/feedq.reconcile?soft=1&hard=1&workername=w1",
    "/api/worker/shutdown/w1",
    "/api/worker/queue/cancel-consumer/w1?queue=celery",
)


def test_another_sites_page_changes_nothing_of_flowers_and_reads_no_answer(flower: Flower) -> None:
    """Not even of one that is open to everybody: the login of a person's computer is the computer."""
    for path in FLOWERS_CHANGES:
        for headers in (EVIL, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}):
            refused = flower.post(path, "{}", headers=headers)
            assert (refused.status, "pages of other sites" in refused.text) == (403, True), path
        assert "not known as" in flower.post(path, "{}", headers={"Host": "evil.example"}).text, path
    own = {"Origin": flower.base, "Sec-Fetch-Site": "same-origin"}
    for sent_by in (own, {}):
        sent = flower.post("/api/task/send-task/acme.nothing", "{}", headers=sent_by)
        assert (sent.status, "task-id" in sent.json) == (200, True)
    for path in (
        "/feeds",
        "/api/v1/feeds",
        "/api/workers",
        "/healthcheck",
        "/nowhere",
        FLOWERS_CHANGES[0],
    ):
        answer = flower.get(path)
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")], path
        assert answer.headers["X-Frame-Options"] == "DENY", path
        assert flower.get(path, headers={"Host": "evil.example"}).status == 403, path


def test_a_flower_without_a_login_does_not_start_for_other_machines(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "celery", "-A", "feedq", "flower", "--address=0.0.0.0", "--port=0"]
    env = {"PATH": os.defpath, "FEEDQ_BROKER_URL": "redis://127.0.0.1:1/0"}
    ended = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "Flower would listen on 0.0.0.0 and ask nobody for a password" in ended.stderr
    assert "Visit me" not in ended.stderr


# -- a database that is away -------------------------------------------------------------------------


@pytest.fixture
def proxy(control_url: str) -> Iterator[PostgresProxy]:
    with PostgresProxy(control_url) as made:
        yield made


def test_a_database_that_is_away_is_said_so_and_the_pages_come_back(
    start_flower: StartFlower, proxy: PostgresProxy, control_url: str
) -> None:
    flower = start_flower(FLOWER_UNAUTHENTICATED_API="true", FEEDQ_DATABASE_URL=proxy.url)
    assert flower.get("/feeds").status == 200
    proxy.refuse()
    password = urlsplit(control_url).password
    assert password
    wait_until(lambda: flower.get("/feeds").status == 503, limit_s=10, what="the page says 503")
    for path in (*PAGES, *API, "/feeds?live=1"):
        wait_until(lambda: flower.get(path).status == 503, limit_s=10, what=f"{path} says 503")  # noqa: B023
        answer = flower.get(path)
        assert "control database postgresql://feedq_flower:***@127.0.0.1" in html.unescape(answer.text), path
        assert password not in answer.text
    assert flower.get("/workers").status == 200
    proxy.admit()
    for path in (*PAGES, *API):
        assert flower.get(path).status == 200, path


def test_a_database_without_its_migrations_says_which_command_helps(
    start_flower: StartFlower, database_url: str
) -> None:
    flower = start_flower(FEEDQ_DATABASE_URL=database_url)
    answer = flower.get("/feeds")
    assert answer.status == 503
    assert "run `feedq db upgrade`" in html.unescape(answer.text)
