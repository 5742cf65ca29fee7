"""A feed from its declaration to its removal, as an operator sees it on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import Cluster, Place, feed, feed_names, wait_until
from tests.invariants import check_invariants, landed, mark, wait_resumed, wait_streaming
from tests.source_process import Source

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

FEEDS = feed_names(6, prefix="life")


class Operator:
    """A cluster of two workers with six feeds, and the commands to look after it."""

    def __init__(self, cluster: Cluster, source: Source) -> None:
        self.cluster = cluster
        self.source = source

    def ask(self, *arguments: str) -> Any:
        return json.loads(self.cluster.feedq(*arguments, "--json"))

    def feeds(self) -> dict[str, dict[str, Any]]:
        return {row["feed"]["spec"]["name"]: row for row in self.ask("feed", "list")}


@pytest.fixture(scope="module")
def operator(place: Place) -> Iterator[Operator]:
    with (
        Source(rate=20) as source,
        place.cluster() as cluster,
    ):
        cluster.add_beat("b1")
        cluster.add_worker("w1", ready=False)
        cluster.add_worker("w2", ready=False)
        cluster.wait_worker("w1")
        cluster.wait_worker("w2")
        cluster.apply([feed(name, source.url) for name in FEEDS])
        wait_streaming(source, FEEDS)
        yield Operator(cluster, source)


def test_a_paused_feed_lets_go_and_resumes_where_it_was_without_touching_others(operator: Operator) -> None:
    chosen = FEEDS[0]
    others = operator.cluster.epochs(FEEDS[1:])
    before = mark(operator.source)
    operator.cluster.feedq("feed", "pause", chosen)
    wait_until(lambda: chosen not in operator.source.live(), limit_s=15, what="the paused feed lets go")
    wait_until(
        lambda: operator.feeds()[chosen]["status"] == "paused", limit_s=15, what="the feed shows as paused"
    )
    operator.cluster.feedq("feed", "resume", chosen)
    wait_resumed(operator.source, [chosen], after=before, limit_s=20)
    check_invariants(operator.cluster, operator.source, FEEDS, untouched=others)


def test_an_edit_restarts_only_the_feed_that_changed(operator: Operator) -> None:
    chosen = FEEDS[1]
    others = operator.cluster.epochs([name for name in FEEDS if name != chosen])
    before = mark(operator.source)
    operator.cluster.apply(edited(operator.source))
    wait_resumed(operator.source, [chosen], after=before, limit_s=20)
    assert [c.feed for c in operator.source.connections(since=before.connections)] == [chosen]
    check_invariants(operator.cluster, operator.source, FEEDS, untouched=others)


def edited(source: Source) -> list[dict[str, Any]]:
    """The declarations, with another option for one of them."""
    declared = [feed(name, source.url) for name in FEEDS]
    declared[1]["source"]["idle_timeout_s"] = 45
    return declared


def test_a_removed_feed_ends_and_keeps_what_it_landed(operator: Operator) -> None:
    chosen = FEEDS[2]
    others = operator.cluster.epochs([name for name in FEEDS if name != chosen])
    operator.cluster.feedq("feed", "remove", chosen, "--yes")
    wait_until(lambda: chosen not in operator.source.live(), limit_s=15, what="the removed feed lets go")
    wait_until(lambda: chosen not in operator.feeds(), limit_s=15, what="the removed feed is gone")
    kept = landed(operator.cluster)[chosen]
    assert kept.count == kept.distinct == kept.last
    check_invariants(operator.cluster, operator.source, sorted(others), untouched=others)
