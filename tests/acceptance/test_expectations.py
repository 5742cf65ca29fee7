"""Feeds that are not as expected are noticed by the elected beat, whatever becomes of the workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedq.embedded.postgres import Postgres
from feedq.embedded.valkey import Valkey
from tests.alert_receiver import AlertReceiver
from tests.cluster import Cluster, feed, wait_until
from tests.source_process import Source

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]

QUIET, BAD, BESIDE = "desk/quiet", "desk/bad", "desk/beside"
SILENCE_S = 10  # longer than a ttl: what is taken over meanwhile is no silence
LIMIT_S = 60.0
UNSETTLED = """
    SELECT f.name, 'unmet ' || u.kind AS what FROM feedq.unmet u JOIN feedq.feed f ON f.id = u.feed_id
    UNION ALL
    SELECT f.name, 'refused records still count'
    FROM feedq.landed_sample s JOIN feedq.lease l USING (feed_id) JOIN feedq.feed f ON f.id = l.feed_id
    WHERE s.dead_letters < l.dead_letters_total
    UNION ALL
    SELECT f.name, 'nothing lands' FROM feedq.lease l JOIN feedq.feed f ON f.id = l.feed_id
    WHERE l.last_record_at < clock_timestamp() - interval '5 s'
    UNION ALL
    SELECT feed, 'not told' FROM feedq.alert WHERE id > (SELECT max(sent_to) FROM feedq.alert_target)
"""
"""What has to pass before a test begins. Of the two targets, one is told nothing."""
EXPECT = {"max_silence": f"{SILENCE_S}s", "max_refused": "1%"}


class Bench:
    """One worker with three feeds, each of which streams."""

    def __init__(self, cluster: Cluster, source: Source, receiver: AlertReceiver) -> None:
        self.cluster, self.source, self.receiver = cluster, source, receiver
        self._told_to = 0

    def unmet(self) -> set[tuple[str, str]]:
        rows = self.cluster.sql(
            "SELECT f.name, u.kind FROM feedq.unmet u JOIN feedq.feed f ON f.id = u.feed_id"
        )
        return {(row["name"], row["kind"]) for row in rows}

    def wait_unmet(self, *wanted: tuple[str, str]) -> None:
        wait_until(
            lambda: self.unmet() == set(wanted),
            limit_s=LIMIT_S,
            what=lambda: f"{wanted} are unmet, and not {self.unmet()}",
        )

    def settle(self) -> None:
        """Have all be as expected and told, and nothing refused that still counts, whatever a test has left."""
        self.receiver.refuses, self.receiver.refused = False, 0
        self.source.behave("stream")
        wait_until(
            lambda: not self.cluster.sql(UNSETTLED),
            limit_s=LIMIT_S,
            what=lambda: f"settled, and not {self.cluster.sql(UNSETTLED)}",
        )
        self.alerts()
        self.receiver.take()

    def alerts(self) -> list[tuple[str, str, bool]]:
        """What was found since the last call."""
        rows = self.cluster.sql(
            "SELECT id, feed, kind, begins FROM feedq.alert WHERE id > %s ORDER BY id", (self._told_to,)
        )
        self._told_to = max([self._told_to, *(row["id"] for row in rows)])
        return [(row["feed"], row["kind"], row["begins"]) for row in rows]

    def wait_named(self, part: str, *names: str) -> None:
        """Wait for messages that say this of each of these feeds, together or not, and of each once."""

        def named() -> list[str]:
            lines = [line for _, body in self.receiver.taken for line in body.splitlines()]
            return sorted(line.partition(":")[0] for line in lines if part in line)

        wait_until(lambda: named() == sorted(names), limit_s=LIMIT_S, what=lambda: f"{names}, not {named()}")
        self.receiver.take()

    def wait_told(self, *parts: str) -> list[str]:
        """Wait for so many messages, each with one of these in its text, and return their titles."""
        wait_until(
            lambda: len(self.receiver.taken) >= len(parts),
            limit_s=LIMIT_S,
            what=lambda: f"{len(parts)} messages, not {self.receiver.taken}",
        )
        taken = self.receiver.take()
        assert len(taken) == len(parts), taken
        for (_, body), part in zip(taken, parts, strict=True):
            assert part in body, taken
        return [title for title, _ in taken]


def settings(receiver: AlertReceiver) -> dict[str, str]:
    """One target is dead, which must not be noticed."""
    return {
        "FEEDQ_EXPECT": json.dumps(EXPECT),
        "FEEDQ_EXPECT_INTERVAL_S": "0.5",
        "FEEDQ_ALERT_URLS": f"{receiver.dead_url} {receiver.url}",
        "FEEDQ_ALERT_INTERVAL_S": "1",
    }


@pytest.fixture(scope="module")
def shared_bench(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, valkey: Valkey
) -> Iterator[Bench]:
    client = valkey.client()
    client.flushall()
    client.close()
    url = postgres.create_database("expectations")
    directory: Path = tmp_path_factory.mktemp("expectations")
    with (
        AlertReceiver() as receiver,
        Source(rate=20) as source,
        Cluster(directory, database_url=url, broker_url=valkey.url(), env=settings(receiver)) as cluster,
    ):
        cluster.add_beat("b1")
        cluster.add_worker("w1")
        cluster.apply([feed(name, source.url) for name in (QUIET, BAD, BESIDE)])
        wait_until(
            lambda: all(cluster.leases()[name].records_total for name in (QUIET, BAD, BESIDE)),
            limit_s=LIMIT_S,
            what="all stream",
        )
        # The elected beat has begun to judge once there are samples.
        wait_until(
            lambda: cluster.sql("SELECT 1 FROM feedq.landed_sample"), limit_s=LIMIT_S, what="the first look"
        )
        yield Bench(cluster, source, receiver)
    postgres.drop_database("expectations")


@pytest.fixture
def bench(shared_bench: Bench) -> Bench:
    shared_bench.settle()
    return shared_bench


def test_a_source_that_sends_nothing_is_told_once_and_so_is_its_end(bench: Bench) -> None:
    bench.source.behave("silent", [QUIET])
    bench.wait_unmet((QUIET, "max_silence"))
    shown = json.loads(bench.cluster.feedq("feed", "show", QUIET, "--json"))
    assert [one["said"] for one in shown["unmet"]] == [f"silent for more than {SILENCE_S}s"]
    assert f"silent for more than {SILENCE_S}s" in bench.cluster.feedq("feed", "list")
    bench.source.behave("stream", [QUIET])
    bench.wait_unmet()
    assert bench.alerts() == [(QUIET, "max_silence", True), (QUIET, "max_silence", False)]
    assert bench.wait_told(f"{QUIET}: silent for more than", f"{QUIET}: as expected again") == [
        "feedq: 1 feed not as expected",
        "feedq: 1 feed as expected again",
    ]


def test_a_frozen_fleet_cannot_keep_quiet_about_it(bench: Bench) -> None:
    worker = bench.cluster.workers["w1"]
    worker.kill("SIGSTOP")
    every = [(name, "max_silence") for name in sorted((QUIET, BAD, BESIDE))]
    bench.wait_unmet(*every)
    bench.wait_named("silent for more than", *(name for name, _ in every))
    worker.kill("SIGCONT")
    bench.wait_unmet()
    told = bench.alerts()
    assert sorted(one for one in told if one[2]) == [(*one, True) for one in every]
    assert sorted(one for one in told if not one[2]) == [(*one, False) for one in every]
    bench.wait_named("as expected again", *(name for name, _ in every))


def test_what_a_target_does_not_take_is_told_when_it_is_back(bench: Bench) -> None:
    bench.receiver.refuses = True
    bench.source.behave("silent", [QUIET])
    wait_until(lambda: bench.receiver.refused, limit_s=LIMIT_S, what="a message that is refused")
    looked = "SELECT pass_seq FROM feedq.fleet"
    before = bench.cluster.sql(looked)[0]["pass_seq"]
    wait_until(
        lambda: bench.cluster.sql(looked)[0]["pass_seq"] > before,
        limit_s=LIMIT_S,
        what="passes are made meanwhile",
    )
    bench.receiver.refuses = False
    bench.wait_told(f"{QUIET}: silent for more than")
    bench.source.behave("stream", [QUIET])
    bench.wait_told(f"{QUIET}: as expected again")


def test_an_operator_tries_whether_alerts_arrive(bench: Bench) -> None:
    ran = bench.cluster.run("alert", "test", "--json")
    assert ran.returncode == 1
    (dead, well) = json.loads(ran.stdout)
    assert (well["error"], "was not taken" in dead["error"]) == (None, True)
    assert [title for title, _ in bench.receiver.take()] == ["feedq: a test"]


def test_a_feed_that_is_declared_with_a_cursor_begins_there(bench: Bench) -> None:
    name = "desk/later"
    bench.cluster.apply(
        [feed(one, bench.source.url) for one in (QUIET, BAD, BESIDE)]
        + [feed(name, bench.source.url) | {"initial_cursor": 40}]
    )
    first = "SELECT min((payload ->> 'seq')::int) AS first FROM landed WHERE feed = %s"
    wait_until(lambda: bench.cluster.sql(first, (name,))[0]["first"], limit_s=LIMIT_S, what="it lands")
    assert bench.cluster.sql(first, (name,))[0]["first"] == 41
    done = json.loads(bench.cluster.feedq("feed", "cursor", "reset", name, "--yes", "--json"))
    assert done["after"] == 40


def test_records_that_are_refused_are_told_of_the_one_feed(bench: Bench) -> None:
    bench.source.behave("spoiled", [BAD])
    bench.wait_unmet((BAD, "max_refused"))
    bench.source.behave("stream", [BAD])
    bench.wait_unmet()
    assert bench.alerts() == [(BAD, "max_refused", True), (BAD, "max_refused", False)]
    bench.wait_told("refused, and not at most 1%", f"{BAD}: as expected again")
