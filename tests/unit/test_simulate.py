"""Fleets on paper keep what real ones promise, and the report adds up."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from feedq import control
from feedq.errors import InvalidInput
from feedq.model import LeaseState
from feedq.settings import Settings
from feedq.simulate import Phase, SimulationReport, Timing, build_scenario, simulate
from feedq.simulate.event_queue import Engine
from feedq.simulate.memory.database import counted_at
from tests.fakes.invariants import overfull_workers, problems_of_move

UNPACED: dict[str, Any] = {"connects_per_s": 0, "host_connects_per_s": {}}
TROUBLES = (
    *("10s kill 1", "20s join 1", "30s freeze 1", "40s deploy pause=2s", "70s drain 1", "75s stop 1"),
    *("80s add 50", "85s remove 80", "90s away host1", "95s kill 2", "100s back host1", "105s join 3"),
    *("115s cordon 1", "120s uncordon 1"),
)


def run(
    *events: str, lasting: str | None = None, settings: dict[str, Any] | None = None, **scenario: Any
) -> SimulationReport:
    chosen = Settings(**(UNPACED | (settings or {})))
    if lasting is not None:
        scenario["for"] = lasting
    return simulate(build_scenario({"events": list(events), **scenario}, origin="test"), chosen)


def after(report: SimulationReport, event: str) -> Phase:
    [phase] = [phase for phase in report.phases if phase.event == event]
    return phase


class Watched(Engine):
    """Looks at everything before time goes on."""

    looks = 0

    def advance(self, to: int) -> None:
        self.looks += 1
        self.check()
        super().advance(to)

    def check(self) -> None:
        tables = self.store.database.tables
        streaming = Counter(feed_id for worker in self.workers.values() for feed_id in worker.streaming)
        assert max(streaming.values(), default=1) == 1
        alive = [feed for feed in self.recorder.feeds.values() if not feed.removed]
        assert self.recorder.down == sum(not feed.connected for feed in alive)
        assert all(feed.connected == (feed.id in streaming) for feed in self.recorder.feeds.values())
        assert [*overfull_workers(tables)] == []
        for lease in tables.leases.values():
            assert (lease.worker_id is None) == (lease.state is LeaseState.IDLE)
            assert [*problems_of_move(lease)] == []
        for worker in tables.workers.values():
            counted = [lease for lease in tables.leases.values() if counted_at(lease) == worker.id]
            assert {lease.feed_id for lease in counted} == tables.leases.counted[worker.id]
            assert tables.leases.load[worker.id] == pytest.approx(sum(lease.weight for lease in counted))


@pytest.mark.parametrize("strategy", ["balanced", "rendezvous"])
@pytest.mark.parametrize("hold_s", [0.0, 10.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_feed_has_one_owner_and_a_worker_never_too_many(strategy: str, hold_s: float, seed: int) -> None:
    scenario = build_scenario(
        {
            "feeds": {"count": 120, "hosts": 3, "tenants": 4, "weights": "mixed"},
            "workers": {"count": 5, "capacity": 40},
            "events": TROUBLES,
            "for": "150s",
            "seed": seed,
        },
        origin="test",
    )
    settings = Settings(placement=strategy, restart_hold_s=hold_s, tenant_caps={"*": 12}, moves_per_pass=7)
    engine = Watched(scenario, settings, Timing())
    report = engine.run()
    engine.check()
    assert engine.looks > 100
    assert report.feeds == 90
    assert all(feed.connected for feed in engine.recorder.feeds.values() if not feed.removed)
    assert len(engine.store.database.tables.leases) == 90


def test_the_same_seed_gives_the_same_report_and_another_one_another() -> None:
    events = ("10s kill 1", "20s join 1", "30s deploy")
    one, two, other = (run(*events, seed=seed).as_document() for seed in (1, 1, 2))
    assert one == two
    assert one != other


def test_a_fleet_starts_cold_after_it_has_settled_and_evenly() -> None:
    start = run("10s add 1").phases[0]
    assert start.placed == 1000
    assert start.moved == 0
    assert start.spread_after == (333, 334)
    assert start.gaps == 1000
    assert Settings().settle_s < start.gap_max_s < Settings().settle_s + 0.5


def test_a_crash_of_one_of_three_moves_its_feeds_and_no_others() -> None:
    crash = after(run("30s kill 1"), "kill 1")
    assert crash.moved in (333, 334)
    assert crash.gaps == crash.moved
    assert crash.moved_again == 0
    assert crash.spread_after == (500, 500)
    assert crash.gap_max_s <= 0.3
    assert crash.down_feed_s == pytest.approx(crash.moved * crash.gap_median_s, rel=0.01)


def test_a_frozen_worker_is_found_when_its_heartbeat_expires() -> None:
    frozen = after(run("30s freeze 1"), "freeze 1")
    settings = Settings()
    assert settings.ttl_s - settings.heartbeat_s <= frozen.gap_median_s <= settings.ttl_s + 0.5


def test_a_stopped_worker_hands_over_at_once() -> None:
    stopped = after(run("30s stop 1"), "stop 1")
    assert stopped.moved in (333, 334)
    assert stopped.gap_max_s <= 0.3


def test_a_newcomer_gets_its_part_and_each_feed_moves_once() -> None:
    joined = after(run("30s join 1", workers={"count": 2}), "join 1")
    assert joined.spread_before == (500, 500)
    assert joined.spread_after == (333, 334)
    assert joined.moved == 333
    assert joined.moved_again == 0
    assert joined.gap_max_s <= 0.5


def test_a_pass_that_looks_at_few_feeds_first_moves_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario: dict[str, Any] = {
        "feeds": [{"count": 200, "required": {"region": "eu"}}, {"count": 200}],
        "workers": [{"count": 0}, {"count": 2, "labels": {"region": "eu"}}],
    }
    monkeypatch.setattr(control, "MOVABLE_FIRST", 4)
    joined = after(run("30s join 1", **scenario), "join 1")
    # The feeds that have run longest may not move there, and all others are found behind them.
    assert (joined.moved, joined.moved_again) == (133, 0)
    assert joined.spread_after == (133, 134)


def test_nothing_moves_when_moves_are_forbidden() -> None:
    joined = after(run("30s join 1", workers={"count": 2}, settings={"moves_per_pass": 0}), "join 1")
    assert joined.moved == 0
    assert joined.spread_after == (0, 500)


def test_a_rolling_deploy_moves_each_feed_twice_at_most() -> None:
    report = run("30s deploy", feeds={"count": 400}, workers={"count": 4, "capacity": 200})
    deploy = after(report, "deploy")
    assert 400 <= deploy.moved + deploy.restarted <= 800
    assert deploy.gap_max_s <= 1.0
    assert deploy.spread_after == (100, 100)


def test_with_hold_a_rolling_deploy_moves_nothing_and_restarts_each_feed_once() -> None:
    report = run(
        "30s deploy restart=2s",
        feeds={"count": 400},
        workers={"count": 4, "capacity": 200},
        settings={"restart_hold_s": 20},
    )
    deploy = after(report, "deploy restart=2s")
    assert (deploy.moved, deploy.restarted) == (0, 400)
    assert 2.0 <= deploy.gap_median_s <= 2.5
    assert deploy.spread_after == (100, 100)


def test_a_hold_that_runs_out_lets_anybody_have_them() -> None:
    stopped = after(run("30s stop 1", settings={"restart_hold_s": 5}), "stop 1")
    assert stopped.restarted == 0
    assert stopped.moved in (333, 334)
    assert 5.0 <= stopped.gap_median_s <= 5.5


def test_who_comes_after_the_hold_has_run_out_gets_no_feed_that_others_have() -> None:
    events = ["10s stop worker1", "30s join worker1"]
    scenario = build_scenario({"feeds": {"count": 90}, "events": events, "for": "60s"}, origin="test")
    engine = Watched(scenario, Settings(**UNPACED, restart_hold_s=5), Timing())
    joined = after(engine.run(), "join worker1")
    assert (joined.moved, joined.spread_after) == (30, (30, 30))


def test_a_crash_does_not_wait_for_the_hold() -> None:
    assert after(run("30s kill 1", settings={"restart_hold_s": 60}), "kill 1").gap_max_s <= 0.3


def test_a_drained_worker_keeps_what_has_no_place_elsewhere() -> None:
    report = run("30s drain worker1", feeds={"count": 1400})
    drained = after(report, "drain worker1")
    assert drained.unplaced == {}
    assert drained.gap_max_s <= 0.5
    assert drained.spread_after == (500, 500)


def test_what_has_no_place_is_told_with_the_reason() -> None:
    report = run("30s kill 1", workers={"count": 2})
    assert after(report, "kill 1").unplaced == {"no_capacity": 500}
    nowhere = run("30s add 1", feeds={"count": 10, "required": {"region": "eu"}})
    assert nowhere.phases[0].unplaced == {"no_match": 10}
    assert nowhere.total.gap_max_s == nowhere.duration_s


def test_labels_are_kept_to() -> None:
    report = run(
        "30s kill worker1",
        workers=[{"count": 2, "labels": {"region": "eu"}}, {"count": 2}],
        feeds=[{"count": 300, "required": {"region": "eu"}}, {"count": 300}],
    )
    assert report.total.unplaced == {}
    lost = run(
        "30s kill worker1 worker2",
        workers=[{"count": 2, "labels": {"region": "eu"}}, {"count": 2}],
        feeds=[{"count": 300, "required": {"region": "eu"}}, {"count": 300}],
    )
    assert lost.total.unplaced == {"no_match": 300}


def test_a_host_sees_no_more_than_its_pace() -> None:
    report = run(
        "30s kill 1",
        "90s kill 1",
        settings={"host_connects_per_s": {"*": 100}, "failover_burst_s": 0},
        workers={"count": 5},
    )
    # What may connect at once after a pause comes on top.
    assert 90 <= report.total.host_connects_per_s <= 130
    assert report.total.connects_per_s == report.total.host_connects_per_s
    burst = run(
        "30s kill 1",
        settings={"host_connects_per_s": {"*": 100}, "failover_burst_s": 1},
        workers={"count": 5},
    )
    assert 150 <= burst.total.host_connects_per_s <= 230, "a failover goes ahead of the pace"
    free = run("30s kill 1", workers={"count": 5})
    assert free.total.host_connects_per_s == 1000


def test_feeds_that_are_removed_while_they_wait_for_their_turn_never_dial() -> None:
    report = run("10s remove 250", feeds={"count": 300}, settings={"host_connects_per_s": {"*": 10}})
    # A hundred at most in ten seconds, a few at once, and those that are left.
    assert sum(report.connects.values()) <= 100 + 10 + 50


def test_feeds_of_a_host_that_is_away_come_back() -> None:
    report = run("30s away host1", "60s back host1", feeds={"count": 100, "hosts": 2}, lasting="3m")
    away = after(report, "away host1")
    assert away.gaps >= 50
    assert 30 <= away.gap_median_s <= 30 + 2 * Settings().backoff_max_s
    assert after(report, "back host1").down_feed_s < 50 * 30


def test_removed_feeds_make_room_for_others() -> None:
    report = run("30s kill 1", "40s remove 600", workers={"count": 2})
    assert after(report, "remove 600").unplaced == {}
    assert report.feeds == 400


@pytest.mark.parametrize("event", ["30s kill worker9", "30s join worker1", "30s drain nobody"])
def test_a_worker_that_is_not_there_is_named(event: str) -> None:
    with pytest.raises(InvalidInput, match=event.split()[-1]):
        run(event)


def test_every_duration_may_be_as_short_as_is_permitted() -> None:
    zero: dict[str, Any] = dict.fromkeys(("heartbeat_s", "trust_margin_s", "settle_s", "look_interval_s"), 0)
    others: dict[str, Any] = {"reconcile_interval_s": 0, "restart_hold_s": 0, "backoff_base_s": 0}
    settings = Settings(**UNPACED, **zero, **others, ttl_s=0.5)
    scenario = build_scenario(
        {"events": ["10s freeze 1", "15s join 1", "20s deploy"], "for": "60s"}, origin="test"
    )
    report = simulate(scenario, settings, Timing(0, 0, 0, 0))
    assert report.total.unplaced == {}
    assert report.total.gap_max_s <= settings.ttl_s + 0.1


def test_a_fleet_of_nobody_and_nothing() -> None:
    assert run("10s add 5", workers={"count": 0}).total.unplaced == {"no_capacity": 1005}
    assert run("10s kill 1", feeds={"count": 0}).total.gaps == 0


@pytest.mark.parametrize("at_s", [32.48, 32.5, 32.52, 32.54, 32.56])
def test_a_worker_may_be_stopped_while_it_hands_feeds_over(at_s: float) -> None:
    report = run("30s join 1", f"{at_s}s stop worker1", feeds={"count": 60}, workers={"count": 2})
    assert report.total.unplaced == {}


@pytest.mark.parametrize("seed", range(6))
def test_a_few_feeds_more_or_less_move_no_others(seed: int) -> None:
    report = run("30s remove 2", "60s add 1", feeds={"count": 20}, workers={"count": 4}, seed=seed)
    assert report.total.moved == 0


def test_a_newcomer_is_sent_no_more_than_it_connects_at_once() -> None:
    report = run(
        "60s join 1", feeds={"count": 600}, workers={"count": 2}, settings={"host_connects_per_s": {"*": 60}}
    )
    assert after(report, "join 1").moved == 200
    assert after(report, "join 1").gap_max_s < 2.5


def test_only_drained_workers_give_feeds_while_others_wait_for_a_successor() -> None:
    report = run(
        "60s stop worker1",
        "65s add 1",
        "70s join worker1",
        feeds={"count": 90},
        workers={"count": 3},
        settings={"restart_hold_s": 30},
    )
    assert (report.total.moved, report.total.restarted) == (0, 30)
