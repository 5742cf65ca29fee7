"""Labels, cordon, drain and move on real workers: feeds go where they should, and no record is lost on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import Cluster, Place, feed, feed_names, wait_until
from tests.invariants import check_invariants, mark, wait_resumed, wait_streaming
from tests.source_process import Source

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]

FEEDS = feed_names(8, prefix="moves")


class Fleet:
    """Two workers in regions of their own, and eight feeds that go anywhere."""

    def __init__(self, cluster: Cluster, source: Source) -> None:
        self.cluster = cluster
        self.source = source

    def ask(self, *arguments: str) -> Any:
        return json.loads(self.cluster.feedq(*arguments, "--json"))

    def name(self, node: str) -> str:
        """Under which a worker is known to feedq."""
        pid = self.cluster.workers[node].pid
        found: str = next(
            row["worker"]["name"] for row in self.ask("worker", "list") if row["worker"]["pid"] == pid
        )
        return found

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


def test_a_drain_empties_a_worker_and_an_uncordon_fills_it_again(fleet: Fleet) -> None:
    name = fleet.name("w1")
    mine = fleet.feeds_of("w1")
    others = fleet.cluster.epochs([feed_name for feed_name in FEEDS if feed_name not in mine])
    before = mark(fleet.source)
    assert fleet.ask("worker", "drain", name, "--wait")["worker"]["target_state"] == "drained"
    wait_resumed(fleet.source, mine, after=before, limit_s=20)
    assert fleet.feeds_of("w1") == []
    fleet.check(untouched=others)
    fleet.cluster.feedq("worker", "uncordon", name)
    wait_until(lambda: len(fleet.feeds_of("w1")) == 4, limit_s=30, what="the load is even again")
    wait_streaming(fleet.source, FEEDS)
    fleet.check()


def test_a_selector_takes_a_feed_to_where_its_labels_are_and_without_any_it_waits(fleet: Fleet) -> None:
    chosen = fleet.feeds_of("w1")[0]
    before = mark(fleet.source)
    fleet.cluster.feedq("feed", "set", chosen, "selector.required.region=us")
    wait_resumed(fleet.source, [chosen], after=before, limit_s=20)
    assert chosen in fleet.feeds_of("w2")
    fleet.cluster.feedq("feed", "set", chosen, "selector.required.region=mars")
    wait_until(
        lambda: fleet.ask("feed", "show", chosen)["view"]["lease"]["reason"] == "no_match",
        limit_s=20,
        interval_s=0.2,
        what="the feed waits for a worker with its label",
    )
    assert "no worker that serves has region=mars" in fleet.ask("feed", "show", chosen)["explanation"]
    before = mark(fleet.source)
    fleet.cluster.feedq("feed", "set", chosen, "selector.required.region=")
    wait_resumed(fleet.source, [chosen], after=before, limit_s=20)
    fleet.check()
