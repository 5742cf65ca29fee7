"""The pages in a real browser: what a screen reader, a keyboard and a phone make of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from feedq.embedded.postgres import Postgres
from feedq.embedded.valkey import Valkey
from tests.peers.browser import LOOKS, Browser, Look
from tests.peers.control_room import OPERATOR, ControlRoom

pytestmark = pytest.mark.timeout(180)

PAGES = {
    "feeds": "/feeds",
    "feed": "/feed?name=acme/orders",
    "fleet": "/fleet",
    "schedules": "/schedules",
}


@pytest.fixture(scope="module")
def room(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, valkey: Valkey
) -> Iterator[ControlRoom]:
    database_url = postgres.create_database("pages")
    directory = tmp_path_factory.mktemp("pages")
    with ControlRoom(directory, database_url=database_url, broker_url=valkey.url(), prefix="/q") as room:
        yield room
    postgres.drop_database("pages")


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_pages_are_accessible_and_fit_whatever_they_are_looked_at_with(room: ControlRoom, look: Look) -> None:
    with Browser(room.base, login=OPERATOR, look=look) as browser:
        for name, path in PAGES.items():
            browser.open(path)
            browser.page.wait_for_selector("#feedq-refreshed:has-text('Live')")
            browser.keep_picture(name)
            browser.check_width()
            browser.check_accessible()
