"""Feeds that are not as expected are noticed by the elected beat, whatever becomes of the workers.

Figures are for ``make bench ARGS=alerts``; the limits here are for a noisy machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.causes import LAGGING, Causes, causes, name_of, wanted
from tests.cluster import Place, wait_until

pytestmark = pytest.mark.timeout(240)

BOUND_S = 12  # longer than a ttl, and than a loop may stand still: what is taken over meanwhile is no silence
LIMIT_S = 90.0
UNSETTLED = """
    SELECT f.name, 'unmet ' || u.kind AS what FROM feedq.unmet u JOIN feedq.feed f ON f.id = u.feed_id
    UNION ALL
    SELECT f.name, 'nothing lands' FROM feedq.progress l JOIN feedq.feed f ON f.id = l.feed_id
    WHERE l.last_record_at < clock_timestamp() - interval '5 s'
    UNION ALL
    SELECT feed, 'not told' FROM feedq.alert WHERE id > (SELECT max(sent_to) FROM feedq.alert_target)
"""
"""What has to pass before a test begins. Of the two targets, one is told nothing."""


@pytest.fixture(scope="module")
def shared_bench(place: Place) -> Iterator[Causes]:
    with causes(
        place.directory,
        database_url=place.database_url,
        broker_url=place.broker_url,
        bound_s=BOUND_S,
        env={"FEEDQ_ALERT_INTERVAL_S": "1"},
    ) as made:
        yield made


@pytest.fixture
def bench(shared_bench: Causes) -> Causes:
    wait_until(
        lambda: not shared_bench.cluster.sql(UNSETTLED),
        lambda: f"settled, and not {shared_bench.cluster.sql(UNSETTLED)}",
        limit_s=LIMIT_S,
    )
    return shared_bench


def test_each_cause_is_told_once_and_so_is_its_end_and_nothing_else(bench: Causes) -> None:
    """What a target does not take meanwhile it is told when it is back, and the passes go on."""
    bench.receiver.refuses = True
    bench.begin()
    wait_until(lambda: bench.receiver.refused, "a message that is refused", limit_s=LIMIT_S)
    looked = "SELECT pass_seq FROM feedq.fleet"
    before = bench.cluster.sql(looked)[0]["pass_seq"]
    wait_until(lambda: bench.cluster.sql(looked)[0]["pass_seq"] > before, "passes are made", limit_s=LIMIT_S)
    bench.receiver.refuses = False
    bench.observe(begins=True, limit_s=LIMIT_S)
    assert bench.alerts() == wanted(begins=True)
    listed = bench.cluster.feedq("feed", "list", "-o", "wide")
    assert f"silent for more than {BOUND_S}s" in listed
    shown = json.loads(bench.cluster.feedq("feed", "show", name_of(LAGGING), "--json"))["view"]
    assert [one["said"] for one in shown["unmet"]] == [f"newest event time (/at) more than {BOUND_S}s ago"]
    assert shown["lease"]["event_at"]
    bench.end()
    bench.observe(begins=False, limit_s=LIMIT_S)
    assert bench.alerts() == wanted(begins=False)
