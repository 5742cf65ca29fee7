"""A worker that alone cannot reach the source is left and given nothing; what cannot run is looked at again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cluster import Cluster, Place, feed, feed_names, wait_until
from tests.invariants import check_invariants, mark, wait_resumed, wait_streaming
from tests.proxy import SourceProxy
from tests.source_process import Source

pytestmark = pytest.mark.timeout(240)

FEEDS = feed_names(8, prefix="elsewhere")
NEW = feed_names(4, prefix="new")
LAKE = feed_names(4, prefix="lake")
PASSES_WATCHED = 5
"""For how many passes nothing comes back; each is a chance to do it."""


class Fleet:
    """Two workers, a source that either may be cut off from, and feeds that stream through it."""

    def __init__(self, cluster: Cluster, source: Source, proxy: SourceProxy, lake: SourceProxy) -> None:
        self.cluster, self.source, self.proxy = cluster, source, proxy
        self.lake = lake
        """Before a sink."""

    def pid(self, node: str) -> int:
        return self.cluster.workers[node].pid

    def feeds_of(self, node: str) -> list[str]:
        return self.cluster.feeds_of(self.cluster.workers[node])

    def events(self, feed_name: str) -> list[str]:
        """What history says of a feed, oldest first."""
        sql = (
            "SELECT kind FROM feedq.event e JOIN feedq.feed f ON f.id = feed_id WHERE name = %s ORDER BY e.id"
        )
        return [row["kind"] for row in self.cluster.sql(sql, [feed_name])]

    def assignments_to(self, node: str) -> int:
        sql = "SELECT sum(count) AS n FROM feedq.event WHERE kind = 'lease_assigned' AND worker_id = %s"
        return int(self.cluster.sql(sql, [self.cluster.worker_id(self.cluster.workers[node])])[0]["n"] or 0)

    def happened(self) -> int:
        """How many events there were, of all feeds: history makes one of the same trouble again and again."""
        return int(
            self.cluster.sql("SELECT sum(count) AS n FROM feedq.event WHERE feed_id IS NOT NULL")[0]["n"]
        )

    def wait_passes(self, count: int) -> None:
        def passes() -> int:
            return int(self.cluster.sql("SELECT pass_seq FROM feedq.fleet")[0]["pass_seq"])

        until = passes() + count
        wait_until(lambda: passes() >= until, f"{count} passes")


@pytest.fixture(scope="module")
def fleet(place: Place) -> Iterator[Fleet]:
    with (
        Source(rate=20) as source,
        SourceProxy(source.url) as proxy,
        SourceProxy(place.database_url) as lake,
        ExitStack() as rest,
    ):
        env = {
            "FEEDQ_RECONCILE_INTERVAL_S": "0.5",
            "FEEDQ_BACKOFF_MAX_S": "4",
            "FEEDQ_SINKS__LAKE": lake.url,
        }
        cluster = rest.enter_context(place.cluster(env=env))
        cluster.add_beat("b1")
        cluster.add_worker("w1", ready=False, env={"FEEDQ_TEST_SECRET": "known"})
        cluster.add_worker("w2", ready=False)
        for node in ("w1", "w2"):
            cluster.wait_worker(node)
        cluster.apply([feed(name, proxy.url) for name in FEEDS])
        wait_streaming(source, FEEDS)
        yield Fleet(cluster, source, proxy, lake)


def test_the_feeds_of_a_worker_that_is_cut_off_from_the_source_stream_on_the_other_and_stay_there(
    fleet: Fleet,
) -> None:
    wait_until(lambda: len(fleet.feeds_of("w1")) == 4, "an even fleet")
    cut = fleet.feeds_of("w1")
    others = fleet.cluster.epochs([name for name in FEEDS if name not in cut])
    before, given = mark(fleet.source), fleet.assignments_to("w1")
    fleet.proxy.cut_off(fleet.pid("w1"))
    wait_resumed(fleet.source, cut, after=before, limit_s=30)
    assert fleet.feeds_of("w1") == []
    fleet.wait_passes(PASSES_WATCHED)
    # It is the emptiest worker by far, and yet not even new feeds of this source go there.
    fleet.cluster.apply([feed(name, fleet.proxy.url) for name in NEW])
    wait_streaming(fleet.source, NEW)
    assert fleet.assignments_to("w1") == given, "something came back"
    check_invariants(fleet.cluster, fleet.source, [*FEEDS, *NEW], untouched=others)


def test_the_feeds_of_a_worker_that_is_cut_off_from_their_sink_land_by_way_of_the_other(fleet: Fleet) -> None:
    fleet.cluster.apply(
        [{**feed(name, fleet.source.url), "sink": {"name": "lake", "table": "landed"}} for name in LAKE]
    )
    wait_streaming(fleet.source, LAKE)
    # All of them may be on one worker, if the tests before have left the others there.
    first, second = ("w1", "w2") if set(LAKE) & set(fleet.feeds_of("w1")) else ("w2", "w1")
    fleet.lake.cut_off(fleet.pid(first))
    wait_until(lambda: not set(LAKE) & set(fleet.feeds_of(first)), "they are let go of")
    since = fleet.cluster.sql("SELECT clock_timestamp() AS now")[0]["now"]

    def target() -> set[str]:
        rows = fleet.cluster.sql("SELECT DISTINCT feed FROM landed WHERE received_at > %s", (since,))
        return {row["feed"] for row in rows}

    wait_until(lambda: target() >= set(LAKE), "all land")
    fleet.wait_passes(PASSES_WATCHED)
    assert not set(LAKE) & set(fleet.feeds_of(first)), "something came back"
    fleet.lake.cut_off(fleet.pid(second))
    wait_until(
        lambda: {row["sinks_down"][0] for row in down(fleet)} == {"lake"} and len(down(fleet)) == 2,
        "both say that they are cut off",
    )
    before = fleet.cluster.epochs(LAKE)
    fleet.wait_passes(PASSES_WATCHED)
    assert fleet.cluster.epochs(LAKE) == before, "nobody writes there: nothing is won by a move"
    fleet.lake.let_in(fleet.pid("w1"), fleet.pid("w2"))
    since = fleet.cluster.sql("SELECT clock_timestamp() AS now")[0]["now"]
    wait_until(lambda: target() >= set(LAKE), "all land again")
    check_invariants(fleet.cluster, fleet.source, LAKE)


def down(fleet: Fleet) -> list[dict[str, list[str]]]:
    return fleet.cluster.sql(
        "SELECT sinks_down FROM feedq.worker WHERE state = 'active' AND sinks_down <> '{}'"
    )


def test_a_feed_whose_secret_one_worker_lacks_streams_on_the_other(fleet: Fleet) -> None:
    """Sooner or later it is tried there, whoever has it first; and it does not go where it could not run."""
    names = feed_names(4, prefix="secret")
    secrets = {"token": "${env:FEEDQ_TEST_SECRET}"}
    fleet.cluster.apply([feed(name, fleet.source.url, secrets=secrets) for name in names])
    wait_streaming(fleet.source, names, limit_s=60)
    fleet.wait_passes(PASSES_WATCHED)
    assert set(names) <= set(fleet.feeds_of("w1"))
