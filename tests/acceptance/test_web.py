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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlsplit
from uuid import uuid4

import pytest

from feedq.control.store import migrate
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import FeedBackfill, FeedSpec, NewWorker, Selector, TargetState, WorkerTarget
from feedq.core.tap import TapPart, TappedRecord
from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from tests.cluster import ROOT, Cluster, wait_until
from tests.flower import Flower, StartFlower
from tests.proxy import Fault, PostgresProxy

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

NASTY = (
    "<script>alert(1)</script>",
    "a\"b'c&d<img/src=x/onerror=alert(1)>",
    "acme/../..//x?y=1&z#%41",
    "größe/{{1+1}}/{%raw%}",
)
PAGES = ("/problems", "/feeds", "/fleet", f"/feed?name={quote('acme/orders', safe='')}")
API = ("/api/v1/feeds", "/api/v1/feeds/acme%2Forders", "/api/v1/workers", "/api/v1/status")
LOADED = "print('loaded:', [m for m in ('feedq.web.site', 'tornado', 'flower') if m in sys.modules])"


@pytest.fixture(scope="module")
def control_url(postgres: Postgres) -> Iterator[str]:
    """A control database with some feeds and two workers that nobody runs."""
    url = postgres.create_database("web")
    migrate.upgrade(url)
    store = PostgresStore(url)
    for name in (*NASTY, "acme/orders"):
        source = {"url": "tcp://127.0.0.1:1", "secrets": {"token": "${env:ACME_TOKEN}"}}
        selector = Selector(required={"region": "<eu>"})
        spec = FeedSpec(name, "tcp", source, {"table": "landed"}, tenant=name[:4], selector=selector)
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
        )
        store.workers.register(worker, ttl_s=3600)
    store.workers.set_target(worker.id, WorkerTarget.CORDONED)
    store.close()
    yield url
    postgres.drop_database("web")


# -- pages -------------------------------------------------------------------------------------------


def test_every_page_of_ours_and_of_flower_has_our_tabs(flower: Flower) -> None:
    for path in (*PAGES, "/workers", "/tasks", "/broker"):
        answer = flower.get(path)
        assert answer.status == 200, path
        tabs = re.findall(r'class="nav-link[^"]*"\s+href="(/[^"]*)"', answer.text)
        assert tabs == ["/problems", "/feeds", "/fleet", "/schedules", "/workers", "/tasks", "/broker"], path


@pytest.mark.parametrize("what", ["feeds", "schedules"])
def test_a_nul_character_in_a_name_is_a_wrong_argument(flower: Flower, what: str) -> None:
    answer = flower.get(f"/api/v1/{what}/a%00b")
    assert (answer.status, "NUL character" in answer.json["detail"]) == (400, True)


def test_what_the_pages_load_is_there(flower: Flower) -> None:
    page = flower.get("/feeds").text
    files = re.findall(r'(?:src|href)="([^"]*(?:/static/)[^"]*)"', page)
    assert {"feedq.css", "feedq.js"} <= {urlsplit(file).path.rpartition("/")[2] for file in files}
    assert {flower.get(html.unescape(file)).status for file in files} == {200}


@pytest.mark.parametrize("live", ["", "live=1"])
def test_nothing_that_people_typed_becomes_markup(flower: Flower, live: str) -> None:
    pages = ["/feeds?", "/fleet?", *(f"/feed?name={quote(name, safe='')}&" for name in NASTY)]
    pages += [f"/feeds?search={quote(name, safe='')}&" for name in NASTY]
    pages += [f"/feeds?worker={quote('<script>alert(2)</script>')}&"]
    for page in pages:
        answer = flower.get(page + live)
        assert answer.status == 200, page
        for markup in ("<script>alert", "<img/src", "<b>host", "<i>host", "<eu>", "\"b'c"):
            assert markup not in answer.text, page
    listed = html.unescape(flower.get("/feeds?live=1").text)
    assert all(name in listed for name in NASTY)


def test_a_browser_may_run_no_script_but_files(flower: Flower) -> None:
    for path in PAGES:
        answer = flower.get(path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        inline = re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=\"|\sstyle=\"|javascript:", answer.text)
        assert inline == [], path


def test_a_stream_has_the_live_part_again_when_it_has_changed(flower: Flower, control_url: str) -> None:
    store = PostgresStore(control_url)
    address = f"{flower.base}/feed?name={quote(NASTY[3], safe='')}&live=stream"
    with urllib.request.urlopen(address, timeout=30) as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")

        def next_part() -> str:
            lines = iter(stream.readline, b"")
            assert b"event: part\n" in lines
            return str(json.loads(next(lines).removeprefix(b"data: ")))

        assert "feed_restarted" not in next_part()
        store.feeds.restart(NASTY[3])
        while "feed_restarted" not in next_part():
            pass
    store.close()


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


def test_a_stream_goes_on_when_its_feed_is_not_there(flower: Flower) -> None:
    address = f"{flower.base}/feed?name=nowhere&live=stream"
    with urllib.request.urlopen(address, timeout=30) as stream:
        assert stream.readline() == b"event: trouble\n"
        assert b"nowhere" in stream.readline()


def test_links_to_feeds_lead_to_them_whatever_their_names(flower: Flower) -> None:
    links = re.findall(r'href="(/feed\?name=[^"]*)"', flower.get("/feeds?live=1").text)
    assert len(links) == len(NASTY) + 1
    titles = [
        html.unescape(re.findall(r"<h1[^>]*>(.*?)</h1>", flower.get(html.unescape(link)).text)[0])
        for link in links
    ]
    assert sorted(titles) == sorted((*NASTY, "acme/orders"))


def test_a_feed_shows_its_declaration_its_secrets_as_references_and_its_history(flower: Flower) -> None:
    page = html.unescape(flower.get(f"/feed?name={quote(NASTY[2], safe='')}").text)
    assert "${env:ACME_TOKEN}" in page
    assert "table: landed" in page
    assert "region=<eu>" in page
    assert "feed_added" in page
    assert "feed_paused" in page
    assert re.search(r'class="badge [^"]*">paused<', page)


def test_a_feed_shows_its_backfill_and_the_backfill_its_feed(flower: Flower, control_url: str) -> None:
    at = f"/feed?name={quote('acme/orders', safe='')}"
    assert ">Backfill</button>" in flower.get(at).text
    store = PostgresStore(control_url)
    feed = store.feeds.get("acme/orders")
    source = {**feed.spec.source, "cursor": "/seq"}
    filling = replace(feed.spec, name="acme/orders~backfill", source=source)
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
    assert "1 cordoned" in page
    assert "0 of 100, 0 %" in re.sub(r"<[^>]*>", "", page)
    assert "nobody leads" in page
    assert "no beat leads" in page


def test_filters_and_pages_of_the_list(flower: Flower) -> None:
    def names(arguments: str) -> list[str]:
        page = flower.get(f"/feeds?live=1&{arguments}").text
        return re.findall(r'class="feedq-name[^"]*"><a [^>]*>([^<]*)<', page)

    assert names("status=paused") == [html.escape(NASTY[2])]
    assert names("search=ORDERS") == ["acme/orders"]
    assert names("worker=w1") == []
    assert names("tenant=acme&order=desc") == ["acme/orders", html.escape(NASTY[2])]
    assert names("match=acme/o*") == ["acme/orders"]
    assert names("connector=tcp&failing=1") == []
    assert f"None of {len(NASTY) + 1} feeds match" in flower.get("/feeds?label=team=none").text
    first, rest = names("limit=2"), names("limit=2&offset=2") + names("limit=2&offset=4")
    assert sorted(first + rest) == sorted(names(""))
    assert len(first + rest) == len(NASTY) + 1
    page = html.unescape(flower.get("/feeds?status=waiting&limit=2").text)
    (more,) = re.findall(r'href="(\?[^"]*)">8 a page<', page)
    assert names(more[1:]) == names("status=waiting")


def test_reasons_to_wait_are_counted_and_lead_to_the_feeds(flower: Flower) -> None:
    page = html.unescape(flower.get("/feeds").text)
    (link,) = re.findall(r'Waiting for a worker:\s*<a data-live href="([^"]*)">4 new</a>', page)
    assert "status=waiting" in link
    assert flower.get(f"/feeds{link}&live=1").text.count('class="feedq-name') == len(NASTY)


def test_a_feed_that_waits_says_why_in_a_sentence(flower: Flower) -> None:
    page = flower.get("/feed?name=acme/orders").text
    assert "It is placed by the next reconcile pass" in page


def test_a_feed_or_argument_that_does_not_exist_is_said_so(flower: Flower) -> None:
    missing = flower.get("/feed?name=%3Cb%3Enope")
    assert missing.status == 404
    assert "no feed named &#x27;&lt;b&gt;nope&#x27;" in missing.text.replace("&#39;", "&#x27;")
    wrong = flower.get("/feeds?status=dead&live=1")
    assert wrong.status == 400
    assert str(wrong.json["error"]).startswith("status='dead': must be one of streaming")


def test_the_api_is_the_same_application_behind_the_login(start_flower: StartFlower) -> None:
    roles = json.dumps({"ada": "operator", "ben": "viewer:acme"})
    flower = start_flower(
        "--url-prefix=q", FLOWER_BASIC_AUTH="ada:secret,ben:other", FEEDQ_FLOWER_ROLES=roles
    )
    assert flower.get("/q/api/v1/feeds").status == 401
    listed = flower.get("/q/api/v1/feeds?limit=2", login="ada:secret").json
    assert (len(listed["feeds"]), bool(listed["next"])) == (2, True)
    assert flower.get("/q/api/v1/feeds/acme%2Forders", login="ada:secret").json["name"] == "acme/orders"
    assert flower.get("/q/api/v1/workers", login="ada:secret").status == 200
    refused = flower.get("/q/api/v1/workers", login="ben:other")
    assert (refused.status, refused.json["error"]) == (403, "Forbidden")
    mine = flower.get("/q/api/v1/feeds", login="ben:other").json
    assert {feed["tenant"] for feed in mine["feeds"]} == {"acme"}
    # The role that this Flower has in the database is for looking.
    paused = flower.post("/q/api/v1/feeds/acme%2Forders/pause", login="ada:secret")
    assert (paused.status, paused.json["error"]) == (503, "PermissionMissing")


# -- API ---------------------------------------------------------------------------------------------


def test_the_api_says_what_the_commands_say(
    flower: Flower, valkey: Valkey, control_url: str, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path, database_url=control_url, broker_url=valkey.url(), migrate=False)
    feeds = flower.get("/api/v1/feeds").json["feeds"]
    assert feeds == json.loads(cluster.feedq("feed", "list", "--json"))
    assert len(feeds) == len(NASTY) + 1
    shown = json.loads(cluster.feedq("feed", "show", "acme/orders", "--json"))
    assert flower.get("/api/v1/feeds/acme%2Forders").json.items() <= shown.items()
    fleet = flower.get("/api/v1/status").json
    assert fleet.keys() == json.loads(cluster.feedq("status", "--json")).keys()
    workers = flower.get("/api/v1/workers").json["workers"]
    assert [worker["name"] for worker in workers] == ["w1@<b>host</b>", "w2@<b>host</b>"]


def test_the_api_knows_feeds_by_whatever_name_they_have(flower: Flower) -> None:
    assert flower.get("/api/v1/feeds/no%20such").status == 404
    for name in NASTY:
        assert flower.get(f"/api/v1/feeds/{quote(name, safe='')}").json["name"] == name


# -- login and prefix --------------------------------------------------------------------------------


def test_without_a_login_the_api_is_closed_unless_opened_and_pages_are_open(
    start_flower: StartFlower,
) -> None:
    flower = start_flower()
    assert {flower.get(path).status for path in PAGES} == {200}
    assert {flower.get(path).status for path in API} == {401}


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


def test_with_somebody_elses_login_strangers_are_sent_there(start_flower: StartFlower) -> None:
    flower = start_flower(
        "--auth=ada@example.com",
        "--auth-provider=flower.views.auth.GoogleAuth2LoginHandler",
        "--oauth2-key=key",
        "--oauth2-secret=secret",
        "--oauth2-redirect-uri=http://127.0.0.1/login",
    )
    for path in (*PAGES, "/feeds?live=1", *API):
        answer = flower.get(path)
        assert answer.status == 302, path
        assert answer.headers["Location"].startswith("/login?"), path
        assert "acme" not in answer.text


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
            assert (refused.status, "another site" in refused.text) == (403, True), path
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


def test_a_flower_with_a_login_needs_one_of_its_names_for_changes_only(start_flower: StartFlower) -> None:
    flower = start_flower("--basic-auth=ada:lovelace", FEEDQ_FLOWER_HOSTS="flower.example.com")
    path = "/api/task/send-task/acme.nothing"
    for host, status in (("flower.example.com", 200), ("other.example.com", 403)):
        assert flower.post(path, "{}", login="ada:lovelace", headers={"Host": host}).status == status
        assert flower.get("/feeds", login="ada:lovelace", headers={"Host": host}).status == 200
    assert flower.post(path, "{}").status == 401
    assert flower.post(path, "{}", login="ada:lovelace", headers=EVIL).status == 403


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


def test_a_database_that_hangs_holds_up_nothing_else_of_flower(
    start_flower: StartFlower, proxy: PostgresProxy
) -> None:
    flower = start_flower(FEEDQ_DATABASE_URL=proxy.url)
    trap = proxy.arm(Fault.HOLD, "WITH found", application="feedq-web")
    waiting = subprocess.Popen(
        [sys.executable, "-c", f"import urllib.request as u; u.urlopen('{flower.base}/feeds', timeout=60)"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert trap.tripped.wait(20)
    assert flower.get("/workers").status == 200
    assert flower.get("/fleet").status == 200
    assert waiting.poll() is None, "the others were served only after it"
    _, said = waiting.communicate(timeout=60)
    assert "HTTP Error 503" in said
    trap.release()
    wait_until(lambda: flower.get("/feeds").status == 200, limit_s=20, what="the page is back")


def test_a_database_without_its_migrations_says_which_command_helps(
    start_flower: StartFlower, database_url: str
) -> None:
    flower = start_flower(FEEDQ_DATABASE_URL=database_url)
    answer = flower.get("/feeds")
    assert answer.status == 503
    assert "run `feedq db upgrade`" in html.unescape(answer.text)


# -- other processes ---------------------------------------------------------------------------------


def loaded_by(code: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\n{LOADED}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    )
    return ran.stdout.splitlines()[-1]


def test_importing_the_app_imports_neither_tornado_nor_flower() -> None:
    assert loaded_by("import feedq.celery.application") == "loaded: []"


def test_a_command_of_celery_other_than_flower_does_not_import_the_pages() -> None:
    # Celery's command itself imports Flower, whatever the subcommand: that is not ours to avoid.
    code = "from celery.bin.celery import celery\ncelery(['-A', 'feedq', 'report'], standalone_mode=False)"
    assert "feedq.web.site" not in loaded_by(code)


def test_installing_twice_adds_the_pages_once() -> None:
    code = (
        "from feedq.web.site import install\nfrom flower import urls\n"
        "install()\nbefore = len(urls.handlers)\ninstall()\nassert len(urls.handlers) == before"
    )
    assert "feedq.web.site" in loaded_by(code)
