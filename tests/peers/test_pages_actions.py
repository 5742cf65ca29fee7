"""Buttons that change something, in a real browser: by keyboard, with a role and without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote
from uuid import uuid4

import pytest

from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import Load, NewWorker
from tests.asking import send_heartbeat
from tests.cluster import Place, wait_until
from tests.peers.browser import PHONE_DARK, Browser
from tests.peers.control_room import OPERATOR, TENANT_OPERATOR, VIEWER, ControlRoom
from tests.schedules import schedule_spec

pytestmark = pytest.mark.timeout(180)

NIGHTLY = "acme/nightly"
OF_ACME = "/feeds?match=acme/o*"


@pytest.fixture(scope="module")
def room(place: Place) -> Iterator[ControlRoom]:
    with ControlRoom(place) as room:
        yield room


def target_states(room: ControlRoom) -> dict[str, str]:
    rows = room.cluster.sql("SELECT name, target_state FROM feedq.feed WHERE removed_at IS NULL")
    return {row["name"]: row["target_state"] for row in rows}


def wait_target(room: ControlRoom, feed: str, target: str) -> None:
    wait_until(lambda: target_states(room)[feed] == target, f"{feed} is to be {target}", limit_s=10)


def test_feeds_are_paused_and_resumed_by_keyboard_and_the_history_has_who_and_why(room: ControlRoom) -> None:
    with Browser(room.base, login=OPERATOR) as browser:
        browser.open(OF_ACME)
        for verb, target in (("pause", "paused"), ("resume", "running")):
            browser.tab_to(f"#feedq-{verb}-all")
            browser.press("Enter")
            browser.page.wait_for_selector("#feedq-dialog-would:has-text('1 feed: acme/orders')")
            assert browser.has_focus("#feedq-dialog-reason")
            browser.page.keyboard.type("stock-taking, say ü")
            browser.press("Enter")
            browser.page.wait_for_selector("#feedq-dialog", state="hidden")
            wait_target(room, "acme/orders", target)
            browser.wait_for_focus(f"#feedq-{verb}-all")
    (paused,) = room.cluster.sql("SELECT detail::text FROM feedq.event WHERE kind = 'feed_paused'")
    assert "ada in Flower" in paused["detail"]
    assert "stock-taking, say " in paused["detail"]
    assert target_states(room)["acme/payments"] == "running"


def test_escape_closes_a_dialog_and_nothing_is_done(room: ControlRoom) -> None:
    with Browser(room.base, login=OPERATOR) as browser:
        browser.open(OF_ACME)
        browser.tab_to("#feedq-remove-all")
        browser.press("Enter")
        browser.page.wait_for_selector("#feedq-dialog-would:has-text('acme/orders')")
        browser.press("Escape")
        browser.page.wait_for_selector("#feedq-dialog", state="hidden")
        browser.wait_for_focus("#feedq-remove-all")
    assert target_states(room)["acme/orders"] == "running"


def test_what_fails_is_said_in_the_words_of_the_api_and_what_was_typed_stays(room: ControlRoom) -> None:
    with Browser(room.base, login=OPERATOR) as browser:
        browser.open(OF_ACME)
        browser.page.click("#feedq-move-all")
        browser.page.wait_for_selector("#feedq-dialog-would:has-text('acme/orders')")
        browser.page.fill("#feedq-dialog .feedq-field input", "nobody")
        browser.page.fill("#feedq-dialog-reason", "too warm there")
        browser.page.click("#feedq-dialog-go")
        browser.page.wait_for_selector("#feedq-dialog-trouble:has-text('nobody')")
        browser.complaints.clear()  # that the API said 404
        assert browser.page.input_value("#feedq-dialog .feedq-field input") == "nobody"
        assert browser.page.input_value("#feedq-dialog-reason") == "too warm there"


@pytest.mark.parametrize(
    ("login", "path", "why"),
    [
        (VIEWER, OF_ACME, "is a viewer, and this needs the role operator"),
        (TENANT_OPERATOR, "/feeds?match=globex/*", "No feed matches"),
        (OPERATOR, "/feeds", "set a filter first"),
    ],
)
def test_a_button_that_is_refused_says_why(room: ControlRoom, login: str, path: str, why: str) -> None:
    with Browser(room.base, login=login) as browser:
        browser.open(path)
        assert browser.page.get_attribute("#feedq-pause-all", "aria-disabled") == "true"
        browser.tab_to("#feedq-pause-all")
        browser.press("Enter")
        browser.page.wait_for_selector(f"#feedq-dialog-trouble:has-text('{why}')")
        assert not browser.page.is_visible("#feedq-dialog-go")


def test_a_feed_that_somebody_else_has_changed_meanwhile_is_shown_anew(room: ControlRoom) -> None:
    with Browser(room.base, login=OPERATOR, look=PHONE_DARK) as browser:
        browser.open("/feeds?match=acme/*")
        browser.page.click("#feedq-pause-all")
        browser.page.wait_for_selector("#feedq-dialog-would:has-text('3 feeds')")
        room.cluster.feedq("feed", "remove", "acme/payments", "--yes")
        browser.page.click("#feedq-dialog-go")
        browser.page.wait_for_selector("#feedq-dialog-trouble:has-text('not 3; nothing was done')")
        browser.complaints.clear()  # that the API said 412
    assert target_states(room)["acme/orders"] == "running"


def test_a_feed_is_rewound_on_its_own_page(room: ControlRoom) -> None:
    with Browser(room.base, login=OPERATOR) as browser:
        browser.open("/feed?name=globex/sensors")
        (row,) = room.cluster.sql("SELECT id FROM feedq.feed WHERE name = 'globex/sensors'")
        rewind = f"#feedq-rewind-{row['id']}"
        browser.tab_to(rewind)
        browser.press("Enter")
        browser.page.wait_for_selector("#feedq-dialog[open]")
        browser.page.keyboard.type("3")
        browser.press("Tab")
        browser.page.wait_for_selector("#feedq-dialog-would:has-text(' to ')")
        browser.page.click("#feedq-dialog-go")
        browser.page.wait_for_selector("#feedq-dialog", state="hidden")
    wait_until(
        lambda: room.cluster.sql("SELECT 1 FROM feedq.event WHERE kind = 'cursor_changed'"),
        "the rewind is in the history",
        limit_s=10,
    )


def test_a_declaration_is_edited_and_neither_a_mistake_nor_somebody_faster_loses_what_was_typed(
    room: ControlRoom,
) -> None:
    text, would = "#feedq-dialog textarea", "#feedq-dialog-would"

    def write(before: str, after: str) -> None:
        browser.page.fill(text, browser.page.input_value(text).replace(before, after))
        browser.press("Tab")

    with Browser(room.base, login=OPERATOR) as browser:
        browser.open("/feed?name=globex/sensors")
        browser.tab_to("[id^=feedq-edit-]")
        browser.press("Enter")
        browser.page.wait_for_selector(f"{would}:has-text('It is unchanged')")
        browser.keep_picture("edit")
        browser.check_accessible()
        write("tenant: globex", "tenant: globex\n  wait: 3")
        browser.page.wait_for_selector("#feedq-dialog-trouble:has-text('wait')")
        write("  wait: 3", "  weight: 7")
        browser.page.wait_for_selector(f"{would}:has-text('weight: 1 → 7')")
        room.cluster.feedq("feed", "set", "globex/sensors", "labels.team=lab")
        browser.page.click("#feedq-dialog-go")
        browser.page.wait_for_selector("#feedq-dialog-trouble:not([hidden])")
        browser.complaints.clear()  # that the API said 400 and 412
        assert "weight: 7" in browser.page.input_value(text)
        browser.page.wait_for_selector(f"{would}:has-text('labels.team')")
        browser.page.click("#feedq-dialog-go")
        browser.page.wait_for_selector("#feedq-dialog", state="hidden")
        browser.page.wait_for_selector(".feedq-option:has-text('weight 1')")
        browser.keep_picture("generations")
        browser.check_accessible()
    (row,) = room.cluster.sql("SELECT weight FROM feedq.feed WHERE name = 'globex/sensors'")
    assert row["weight"] == 7


def test_problems_of_workers_and_schedules_are_listed_and_fit(room: ControlRoom) -> None:
    cut_off = NewWorker(uuid4(), "w9@elsewhere", "node.w9", 0, "elsewhere", 1, "0")
    with closing(PostgresStore(room.cluster.database_url)) as store:
        store.workers.register(cut_off, ttl_s=3600)
        send_heartbeat(store, cut_off.id, Load(sinks_down=("warehouse",)), ttl_s=3600)
        store.jobs.schedules.add(
            schedule_spec(NIGHTLY, every=86_400, task="acme.roll_up", pause_on_failure=1)
        )
    room.cluster.sql(
        "UPDATE feedq.schedule SET state = 'paused', failures = 1 WHERE name = %s RETURNING 1", [NIGHTLY]
    )
    with Browser(room.base, login=OPERATOR, look=PHONE_DARK) as browser:
        browser.open("/problems")
        browser.page.wait_for_selector(".feedq-problem:has-text('cannot write to sink warehouse')")
        browser.page.wait_for_selector(f".feedq-problem:has-text('paused by failures: {NIGHTLY}')")
        browser.page.wait_for_selector("[data-tab=problems]:has-text('Problems (')", state="attached")
        browser.keep_picture("problems-of-all")
        browser.check_width()
        browser.check_accessible()
        browser.open(f"/schedule?name={NIGHTLY}")
        press(browser, f"[id='feedq-resume-schedule-{quote(NIGHTLY, safe='')}']")
    (row,) = room.cluster.sql("SELECT state, failures FROM feedq.schedule WHERE name = %s", [NIGHTLY])
    assert (row["state"], row["failures"]) == ("active", 0)


def press(browser: Browser, button: str) -> None:
    browser.page.click(button)
    browser.page.wait_for_selector("#feedq-dialog-go:not([disabled])")
    browser.page.click("#feedq-dialog-go")
    browser.page.wait_for_selector("#feedq-dialog", state="hidden")
