"""The page *Feeds* with 100,000 feeds in a headless Chromium: until it is painted, until a filter has its rows.

The feeds have landed for an hour, so that each row has a picture of its last minutes.

Needs Chromium, as `make peers` does.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from bench.api import FEEDS, with_many
from bench.history import kept_minutes
from bench.report import Figure, at_most
from bench.servers import running
from feedq.control.store.postgresql import PostgresStore
from tests.cluster import ROOT, Cluster
from tests.flower import Flower
from tests.node import Node
from tests.peers.browser import Browser

ROUNDS: Final = 10
PAINT_S: Final = 0.5
FILTER_S: Final = 0.3
PAINTED: Final = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
ALL_PAUSED: Final = FEEDS // 1000


def measure(directory: Path) -> Iterator[Figure]:
    with running(directory) as (postgres, valkey):
        url = with_many(postgres, "pages")
        store = PostgresStore(url, application_name="bench-pages")
        kept_minutes(url, store)
        store.close()
        cluster = Cluster(directory, database_url=url, broker_url=valkey.url(), migrate=False)
        argv = [sys.executable, "-m", "celery", "-A", "feedq", "flower", "--address=127.0.0.1", "--port=0"]
        flower = Flower(Node("flower", argv, env=cluster.env, cwd=ROOT, log=directory / "flower.log"))
        try:
            for what, limit_s, times in (
                ("first paint", PAINT_S, [_paint(flower) for _ in range(ROUNDS)]),
                ("a status is chosen", FILTER_S, list(_filtered(flower, _choose_status))),
                ("a text is typed", FILTER_S, list(_filtered(flower, _type_text))),
            ):
                yield at_most(
                    f"page Feeds, {FEEDS:,} feeds: {what}",
                    limit_s * 1_000,
                    statistics.median(times) * 1_000,
                    "ms",
                    runs=f"median of {ROUNDS}, longest {max(times) * 1_000:.0f}",
                )
        finally:
            flower.node.end()
            cluster.close()


def _paint(flower: Flower) -> float:
    # A browser of its own each time: nothing is in its cache.
    with Browser(flower.base) as browser:
        browser.open("/feeds")
        browser.page.wait_for_selector(".feedq-name")
        painted: float = browser.page.evaluate(PAINTED)
    return painted / 1_000


def _filtered(flower: Flower, choose: Callable[[Browser, int], str]) -> Iterator[float]:
    """Time from the last key or click until the rows are those that were asked for; each time others."""
    for number in range(ROUNDS):
        with Browser(flower.base) as browser:
            browser.open("/feeds")
            # Nobody types before the script of the page runs.
            browser.page.wait_for_selector(".feedq-scripted .feedq-name")
            browser.page.wait_for_load_state("load")
            began = time.perf_counter()
            browser.page.wait_for_selector(choose(browser, number))
            yield time.perf_counter() - began


def _choose_status(browser: Browser, _: int) -> str:
    browser.page.click("a.feedq-status:has-text('paused')")
    return f".feedq-pager:has-text('of {ALL_PAUSED:,} feeds')"


def _type_text(browser: Browser, number: int) -> str:
    browser.page.fill("#feedq-filter input[type=search]", f"feed-0{number:02}00")
    return f".feedq-pager:has-text('of {10 if number else 9} feeds')"
