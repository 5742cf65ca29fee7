"""The pages in a real browser: what a screen reader, a keyboard and a phone make of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import cycle

import psycopg2
import pytest

from feedq.control.store.postgresql import PostgresStore
from feedq.core.schedule.spec import Overlap
from tests.cluster import Place
from tests.peers.browser import LOOKS, PHONE_DARK, Browser, Look
from tests.peers.control_room import OPERATOR, VIEWER, ControlRoom
from tests.schedules import schedule_spec

pytestmark = pytest.mark.timeout(180)

TABS_MAX = 400
BUTTONS = "[...document.querySelectorAll('.feedq button')].filter(b => b.checkVisibility()).map(b => b.id)"
PAGES = {
    "problems": "/problems",
    "feeds": "/feeds",
    "feeds-chosen": "/feeds?match=acme/*",
    "feed": "/feed?name=acme/orders",
    "feed-in-numbers": "/feed?name=acme/orders&span=day&numbers=1",
    "fleet": "/fleet",
    "schedules": "/schedules",
    "schedule": "/schedule?name=acme/rollup",
}

DIALOGS = {
    "move": ("/feeds?match=acme/*", "move"),
    "edit": ("/feed?name=acme/orders", "edit"),
    "rewind": ("/feed?name=acme/orders", "rewind"),
    "reset": ("/feed?name=acme/orders", "reset"),
    "drain": ("/fleet", "drain"),
    "trigger": ("/schedules", "trigger"),
    "backfill": ("/schedule?name=acme/rollup", "backfill-schedule"),
    "cancel": ("/schedule?name=acme/rollup", "cancel-run"),
}
"""Pages, and the button that is pressed there."""


@pytest.fixture(scope="module")
def room(place: Place) -> Iterator[ControlRoom]:
    with ControlRoom(place) as room:
        show_history(place.database_url)
        yield room


HISTORY = """
    UPDATE feedq.progress SET records_total = 41520, last_record_at = now() - interval '12 min'
    WHERE feed_id = (SELECT id FROM feedq.feed WHERE name = 'globex/paused');
    INSERT INTO feedq.landed_count (chunk, at, daily, places, records, dead_letters, silent_s)
    SELECT id / 1000, at, true, array_agg((id % 1000)::smallint ORDER BY id), array_agg(
        CASE WHEN name IN ('acme/unreachable', 'globex/unplaced') THEN 0
            WHEN name = 'globex/paused' THEN 41520 - 640 * greatest(n - 12, 0)
            ELSE 1e6 - (1100 - 100 * k) * n + 120 * sin(n * n + 7 * k) + 40 * k * sin(0.2 * k * n)
        END::bigint ORDER BY id),
        array_agg(0::bigint),
        array_agg(CASE name WHEN 'globex/paused' THEN 60 * greatest(12 - n, 0) ELSE 2 + 2 * sin(k * n)
        END::real ORDER BY id)
    FROM (SELECT id, name, row_number() OVER (ORDER BY name) AS k FROM feedq.feed) f, generate_series(1, 60) n,
        LATERAL (SELECT date_trunc('minute', now()) + interval '10s' - make_interval(mins => n)) x (at)
    WHERE n NOT BETWEEN 20 AND 23 GROUP BY id / 1000, at
"""


def show_history(database_url: str) -> None:
    """An hour of what feeds landed, with a gap; one was paused meanwhile. And a schedule with some runs."""
    connection = psycopg2.connect(database_url)
    with closing(connection), connection, connection.cursor() as cursor:
        cursor.execute(HISTORY)
    store = PostgresStore(database_url)
    store.jobs.schedules.add(
        schedule_spec("acme/rollup", every=3600, task="acme.roll_up", overlap=Overlap.ALLOW_ALL)
    )
    for n in range(12):
        made = store.jobs.schedules.trigger("acme/rollup", key=f"k{n}")
        if n % 3:
            store.jobs.schedules.cancel_run(made.id)
    store.close()


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_pages_are_accessible_and_fit_whatever_they_are_looked_at_with(room: ControlRoom, look: Look) -> None:
    with Browser(room.base, login=OPERATOR, look=look) as browser:
        for name, path in PAGES.items():
            browser.open(path)
            browser.page.wait_for_selector("#feedq-refreshed:has-text('Live')")
            browser.keep_picture(name)
            browser.check_width()
            browser.check_accessible()


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_dialogs_are_accessible_and_fit(room: ControlRoom, look: Look) -> None:
    for login, dialogs in ((OPERATOR, DIALOGS), (VIEWER, {"refused": DIALOGS["move"]})):
        with Browser(room.base, login=login, look=look) as browser:
            for name, (path, button) in dialogs.items():
                browser.open(path)
                browser.page.focus(f"[id^=feedq-{button}-] >> nth=0")
                browser.press("Enter")
                browser.page.wait_for_selector("#feedq-dialog[open]")
                browser.keep_picture(f"dialog-{name}")
                browser.check_width()
                browser.check_accessible()


def test_every_button_is_reached_and_opened_by_keyboard_and_gets_the_focus_back(room: ControlRoom) -> None:
    keys = cycle(("Enter", "Space"))
    with Browser(room.base, login=OPERATOR) as browser:
        for path in PAGES.values():
            browser.open(path)
            browser.page.wait_for_selector("#feedq-refreshed:has-text('Live')")
            buttons: list[str] = browser.page.evaluate(BUTTONS)
            assert len(buttons) == len(set(buttons)) > 0, path
            left = set(buttons)
            for _ in range(TABS_MAX):
                browser.press("Tab")
                focused: str = browser.page.evaluate("document.activeElement.id")
                if focused not in left:
                    continue
                left.remove(focused)
                if browser.has_focus("[data-ask]"):
                    browser.press(next(keys))
                    browser.page.wait_for_selector("#feedq-dialog[open]")
                    assert browser.has_focus("#feedq-dialog :focus")
                    browser.press("Escape")
                    browser.page.wait_for_selector("#feedq-dialog", state="hidden")
                    # The page may have been replaced beneath the dialog: the script brings the focus back then.
                    browser.wait_for_focus(f"[id='{focused}']")
                if not left:
                    break
            assert left == set(), path
        # What cannot be done as things stand the API says while a dialog is open: no cursor to go back to, say.
        browser.complaints[:] = [said for said in browser.complaints if "status of 4" not in said]


def test_feeds_that_were_just_chosen_show_what_they_landed_as_well(room: ControlRoom) -> None:
    with Browser(room.base, login=OPERATOR) as browser:
        browser.open("/feeds?text=nobody")
        browser.page.wait_for_selector(".feedq-scripted .empty-table-message")
        browser.page.fill("#feedq-filter input[type=search]", "acme/orders")
        browser.page.wait_for_selector("tr:has-text('acme/orders') .feedq-spark svg")


def test_records_are_shown_as_they_land(room: ControlRoom) -> None:
    with Browser(room.base, login=OPERATOR, look=PHONE_DARK) as browser:
        browser.open("/feed?name=acme/orders")
        browser.tab_to("#feedq-tap-button")
        browser.press("Enter")
        browser.page.wait_for_selector(".feedq-tapped p:has-text('seq')")
        browser.keep_picture("tap")
        browser.check_width()
        browser.check_accessible()


def test_a_page_says_when_it_has_lost_the_server_and_comes_back_by_itself(room: ControlRoom) -> None:
    assert room.flower is not None
    with Browser(room.base, login=OPERATOR) as browser:
        browser.open("/feeds")
        browser.page.wait_for_selector("#feedq-refreshed:has-text('Live')")
        room.flower.node.end()
        browser.page.wait_for_selector("#feedq-trouble:has-text('Flower does not answer.')")
        browser.page.wait_for_selector("#feedq-refreshed:has-text('Trying again')")
        room.start_flower()
        browser.page.wait_for_selector("#feedq-refreshed:has-text('Live')")
        browser.page.wait_for_selector("#feedq-trouble", state="hidden")
        # What the browser itself says of a connection that broke off.
        browser.complaints.clear()
