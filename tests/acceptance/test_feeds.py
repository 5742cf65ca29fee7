"""Feeds as an operator deals with them on the command line: declared, moved, paused, edited, refused, removed.

On real workers, and no record is lost or doubled on the way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster import Cluster, Place, feed, feed_names, wait_until
from tests.invariants import check_invariants, landed, mark, wait_resumed, wait_streaming
from tests.source_process import Source

pytestmark = pytest.mark.timeout(180)

FEEDS = feed_names(8, prefix="desk")
TYPED = "desk/typed"
REFUSED = 20


class Fleet:
    """Two workers in regions of their own, and eight feeds that go anywhere."""

    def __init__(self, cluster: Cluster, source: Source) -> None:
        self.cluster = cluster
        self.source = source

    def ask(self, *arguments: str) -> Any:
        return json.loads(self.cluster.feedq(*arguments, "--json"))

    def feeds(self) -> dict[str, dict[str, Any]]:
        return {row["feed"]["spec"]["name"]: row for row in self.ask("feed", "list")}

    def others(self, chosen: str) -> dict[str, int]:
        """The epochs of all feeds but this."""
        return self.cluster.epochs([name for name in FEEDS if name != chosen])

    def feeds_of(self, node: str) -> list[str]:
        return self.cluster.feeds_of(self.cluster.workers[node])

    def check(self, *, untouched: dict[str, int] | None = None) -> None:
        check_invariants(self.cluster, self.source, FEEDS, untouched=untouched)


@pytest.fixture(scope="module")
def fleet(place: Place) -> Iterator[Fleet]:
    with (
        Source(rate=20) as source,
        place.cluster() as cluster,
    ):
        cluster.add_beat("b1")
        for node, region in (("w1", "eu"), ("w2", "us")):
            cluster.add_worker(node, ready=False, env={"FEEDQ_WORKER_LABELS": json.dumps({"region": region})})
        cluster.wait_worker("w1")
        cluster.wait_worker("w2")
        cluster.apply([feed(name, source.url) for name in FEEDS])
        wait_streaming(source, FEEDS)
        yield Fleet(cluster, source)


# -- from worker to worker ---------------------------------------------------------------------------


def test_a_selector_takes_a_feed_to_where_its_labels_are_and_without_any_it_waits(fleet: Fleet) -> None:
    chosen = fleet.feeds_of("w1")[0]
    before = mark(fleet.source)
    fleet.cluster.feedq("feed", "set", chosen, "selector.required.region=us")
    wait_resumed(fleet.source, [chosen], after=before, limit_s=20)
    assert chosen in fleet.feeds_of("w2")
    fleet.cluster.feedq("feed", "set", chosen, "selector.required.region=mars")
    wait_until(
        lambda: fleet.ask("feed", "show", chosen)["view"]["lease"]["reason"] == "no_match",
        "the feed waits for a worker with its label",
        interval_s=0.2,
    )
    assert "no worker that serves has region=mars" in fleet.ask("feed", "show", chosen)["explanation"]
    before = mark(fleet.source)
    fleet.cluster.feedq("feed", "set", chosen, "selector.required.region=")
    wait_resumed(fleet.source, [chosen], after=before, limit_s=20)
    fleet.check()


# -- one feed, and no other --------------------------------------------------------------------------


def test_an_edit_restarts_only_the_feed_whose_stream_changes(fleet: Fleet) -> None:
    chosen = FEEDS[1]
    others = fleet.others(chosen)
    before = mark(fleet.source)
    declared = [feed(name, fleet.source.url) for name in FEEDS]
    declared[1]["source"]["idle_timeout_s"] = 45
    declared[3] |= {"labels": {"team": "till"}, "weight": 2.0, "expect": {"max_silence": "5m"}}
    fleet.cluster.apply(declared)
    wait_resumed(fleet.source, [chosen], after=before, limit_s=20)
    assert [c.feed for c in fleet.source.connections(since=before.connections)] == [chosen]
    fleet.check(untouched=others)


def test_a_removed_feed_ends_and_keeps_what_it_landed(fleet: Fleet) -> None:
    chosen = FEEDS[2]
    others = fleet.others(chosen)
    fleet.cluster.feedq("feed", "remove", chosen, "--yes")
    wait_until(lambda: chosen not in fleet.source.live(), "the removed feed lets go", limit_s=15)
    wait_until(lambda: chosen not in fleet.feeds(), "the removed feed is gone", limit_s=15)
    kept = landed(fleet.cluster)[chosen]
    assert kept.count == kept.distinct == kept.last
    check_invariants(fleet.cluster, fleet.source, sorted(others), untouched=others)


# -- refused records ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def refused(fleet: Fleet) -> None:
    """A feed whose table has refused its records, paused."""
    fleet.cluster.make("CREATE TABLE typed (seq bigint, pad date)")
    sink = {"table": "typed", "columns": {"seq": "/seq", "pad": "/pad"}}
    fleet.cluster.apply([feed(TYPED, fleet.source.url) | {"sink": sink}])
    wait_until(lambda: fleet.cluster.leases()[TYPED].dead_letters_total >= REFUSED, "records refused")
    fleet.cluster.feedq("feed", "pause", TYPED, "--wait")


def sequence(fleet: Fleet) -> list[int]:
    return [row["seq"] for row in fleet.cluster.sql("SELECT seq FROM typed ORDER BY seq")]


@pytest.mark.usefixtures("refused")
def test_a_replay_lands_what_the_mended_table_takes_and_keeps_the_rest(fleet: Fleet) -> None:
    before = fleet.ask("feed", "dead-letters", "list", TYPED, "--limit", "10000")
    first, second = sorted(letter["id"] for letter in before)[:2]
    ran = fleet.cluster.run("feed", "dead-letters", "replay", TYPED, str(first), "--json")
    assert ran.returncode == 1, "the table has not been mended yet"
    assert json.loads(ran.stdout)["landed"] == 0
    assert sequence(fleet) == []

    fleet.cluster.sql("ALTER TABLE typed ALTER COLUMN pad TYPE text")
    assert fleet.ask("feed", "dead-letters", "drop", TYPED, str(second), "--yes")["dropped"] == 1
    # Two at once: between them each record lands once.
    with ThreadPoolExecutor(2) as both:
        done = list(both.map(lambda _: fleet.ask("feed", "dead-letters", "replay", TYPED, "--all"), range(2)))
    assert sum(report["landed"] for report in done) == len(before) - 1
    dropped = next(json.loads(letter["record"])["seq"] for letter in before if letter["id"] == second)
    expected = sorted(json.loads(letter["record"])["seq"] for letter in before)
    expected.remove(dropped)
    assert sequence(fleet) == expected
    assert fleet.ask("feed", "dead-letters", "list", TYPED) == []
    # None is left, and nothing goes on asking for a replay.
    assert fleet.ask("feed", "list", "--dead-letters") == []
    assert "dead letter" not in fleet.cluster.feedq("feed", "show", TYPED)
    assert "dead letter" not in fleet.cluster.feedq("status", "--problems")
    lease = fleet.ask("feed", "show", TYPED)["view"]["lease"]
    assert (lease["dead_letters"], lease["dead_letters_total"] >= REFUSED) == (0, True)
