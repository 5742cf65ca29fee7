"""When a process of the fleet is started again, and how the fleet is stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from feedq.local import local_service
from feedq.local.local_service import (
    HEALTHY_S,
    LAST_PAUSE_S,
    RESTART_PAUSE_MAX_S,
    RESTART_PAUSE_S,
    Service,
    describe_exit,
    hasten_one,
    next_deaths,
    restart_pause_s,
    stop_all,
)
from feedq.local.process import poll_until, tail

GENEROUS_S = 20.0


@contextmanager
def service(directory: Path, code: str, *, name: str = "worker1") -> Iterator[Service]:
    made = Service(
        name, "worker", lambda: ["/bin/sh", "-c", code], dict(os.environ), directory / f"{name}.log"
    )
    try:
        yield made
    finally:
        stop_all([made], grace_s=0, is_forced=lambda: True)


def wait_for_death(made: Service) -> None:
    process = made.process
    assert process is not None
    assert poll_until(lambda: process.poll() is not None, timeout_s=GENEROUS_S)


def test_a_death_is_told_once_and_restarted_after_a_pause(tmp_path: Path) -> None:
    with service(tmp_path, "exit 3") as made:
        made.start(now=100.0)
        pid = made.pid
        wait_for_death(made)
        ended = made.poll(now=101.0)
        assert ended is not None
        assert (ended.name, ended.pid, ended.how) == ("worker1", pid, "ended with status 3")
        assert made.poll(now=101.5) is None
        assert not made.is_due(now=101.0 + ended.restart_in_s - 0.01)
        assert made.is_due(now=101.0 + ended.restart_in_s)
        made.start(now=106.0)
        assert made.pid not in (None, pid)


def test_a_live_process_is_left_alone(tmp_path: Path) -> None:
    with service(tmp_path, "exec sleep 600") as made:
        made.start(now=0.0)
        assert made.poll(now=1.0) is None
        assert not made.is_due(now=1e9)


def test_the_pause_grows_while_a_process_dies_young_and_has_a_bound() -> None:
    deaths, pauses = 0, []
    for _ in range(200):
        deaths = next_deaths(deaths, uptime_s=1.0)
        pauses.append(restart_pause_s(deaths))
    assert pauses[0] == RESTART_PAUSE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == RESTART_PAUSE_MAX_S


def test_a_process_that_lived_long_is_restarted_after_the_shortest_pause() -> None:
    assert restart_pause_s(next_deaths(9, uptime_s=HEALTHY_S)) == RESTART_PAUSE_S


def test_the_log_of_a_process_that_dies_again_and_again_is_not_rotated_away(tmp_path: Path) -> None:
    with service(tmp_path, "echo the reason; exit 1") as made:
        for round_number in range(3):
            made.start(now=10.0 * round_number)
            wait_for_death(made)
            made.poll(now=10.0 * round_number + 1)
        assert tail(made.log).count("the reason") == 3


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "ended with status 0"),
        (-9, "killed by SIGKILL"),
        (-15, "killed by SIGTERM"),
        (-250, "killed by signal 250"),
    ],
)
def test_an_exit_is_told_in_words(status: int, words: str) -> None:
    assert describe_exit(status) == words


def test_all_are_asked_to_stop_and_only_the_deaf_are_killed(tmp_path: Path) -> None:
    deaf = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    polite = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"
    with service(tmp_path, deaf, name="deaf") as one, service(tmp_path, polite, name="polite") as other:
        for made in (one, other):
            made.start(now=0.0)
            assert poll_until(lambda: tail(made.log) == "up", timeout_s=GENEROUS_S)  # noqa: B023
        processes = [made.process for made in (one, other)]
        assert stop_all([one, other], grace_s=0.5, is_forced=lambda: False) == ["deaf"]
        assert [p.returncode for p in processes if p is not None] == [-signal.SIGKILL, 0]
        assert one.pid is None
        assert not one.is_due(now=1e9)


def died(made: Service, *, at: float, deaths: int) -> None:
    """It was started and died, and had done so before."""
    made.deaths = deaths - 1
    made.start(now=at)
    wait_for_death(made)
    assert made.poll(now=at) is not None


def test_of_those_that_all_died_one_is_started_again_at_once(tmp_path: Path) -> None:
    with service(tmp_path, "exit 1") as first, service(tmp_path, "exit 1", name="worker2") as second:
        died(first, at=100.0, deaths=5)
        died(second, at=103.0, deaths=1)
        assert hasten_one([first, second]) is second, "whose pause is shorter"
        assert second.is_due(now=103.0 + LAST_PAUSE_S)
        assert not second.is_due(now=103.0 + LAST_PAUSE_S - 0.01)
        assert not first.is_due(now=159.9), "the other keeps its pause"
        assert hasten_one([first, second]) is None, "that is said once"


def test_while_another_lives_pauses_are_kept(tmp_path: Path) -> None:
    with service(tmp_path, "exit 1") as dead, service(tmp_path, "exec sleep 600", name="worker2") as alive:
        died(dead, at=100.0, deaths=3)
        alive.start(now=0.0)
        assert hasten_one([dead, alive]) is None
        assert not dead.is_due(now=119.9)


def test_one_that_cannot_be_started_is_not_hastened(tmp_path: Path) -> None:
    with service(tmp_path, "exit 1") as made:
        died(made, at=100.0, deaths=1)
        made.ended_at, made.restart_at = None, 110.0
        assert hasten_one([made]) is None


def test_each_of_several_processes_has_a_metrics_port_of_its_own(tmp_path: Path) -> None:
    asked = {"FEEDQ_METRICS_PORT": "9464", "FEEDQ_BEAT_METRICS_PORT": "9474"}
    workers = [local_service.worker(n, capacity=1, settings=asked, logs=tmp_path) for n in (1, 2)]
    beats = [local_service.beat(n, settings=asked, logs=tmp_path) for n in (1, 2)]
    assert [made.env["FEEDQ_METRICS_PORT"] for made in workers] == ["9464", "9465"]
    assert [made.env["FEEDQ_BEAT_METRICS_PORT"] for made in beats] == ["9474", "9475"]
    assert "FEEDQ_BEAT_METRICS_PORT" not in local_service.beat(1, settings={}, logs=tmp_path).env
