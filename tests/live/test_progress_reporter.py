"""Progress reaches the database every heartbeat, news of a status at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import exp

import pytest

from feedq.core.limits import NEWS_GATHERED_S
from feedq.core.model import Claim, Feed, FeedSpec, ProgressReport
from feedq.worker.progress_reporter import PROGRESS_MAX, ProgressReporter
from feedq.worker.runner import FeedRunner, WorkerServices
from tests.fakes.clock import ManualClock
from tests.fakes.sink import IDENTITY
from tests.unit.data_path import AT, DataPath, PathPool, until, worker_services


def make_runner(services: WorkerServices, feed_id: int) -> FeedRunner:
    spec = FeedSpec(
        name=f"feed-{feed_id}", connector="tcp", source={"url": "tcp://127.0.0.1:1"}, sink={"table": "t"}
    )
    return FeedRunner(Claim(Feed(feed_id, spec, 1, AT, AT, IDENTITY), 1, 0), services)


def services_of(reporter: ProgressReporter) -> WorkerServices:
    return worker_services(PathPool(DataPath()), on_progress=reporter.note, on_status=reporter.tell)


def reporting() -> tuple[ProgressReporter, list[list[ProgressReport]]]:
    """A reporter on the running loop, and all its reports."""
    sent: list[list[ProgressReport]] = []
    loop = asyncio.get_running_loop()
    return ProgressReporter(loop, sent.append), sent


async def test_a_new_status_is_told_at_once_and_many_of_them_together() -> None:
    reporter, sent = reporting()
    around = services_of(reporter)
    runners = [make_runner(around, n) for n in (1, 2, 3)]
    for runner in runners:
        runner._connected()
    await until(lambda: sent, "told without a heartbeat")
    assert [sorted((p.feed_id, p.connected) for p in report) for report in sent] == [
        [(1, True), (2, True), (3, True)]
    ]


async def test_rates_are_smoothed_over_half_a_minute() -> None:
    clock = ManualClock()
    reporter, _ = reporting()
    progress = make_runner(replace(services_of(reporter), clock=clock), 1).progress
    assert progress.report().rows_per_s == 0, "it connects"

    def report(*, rows: int, after_s: float) -> tuple[float, float]:
        clock.advance(after_s)
        progress.landed += rows
        progress.bytes_landed += 10 * rows
        said = progress.report()
        return said.rows_per_s, said.bytes_per_s

    assert report(rows=100, after_s=10) == pytest.approx((10, 100)), "the first stands for itself"
    assert report(rows=0, after_s=30) == pytest.approx((10 * exp(-1), 100 * exp(-1)))
    assert report(rows=0, after_s=100_000) == pytest.approx((0, 0))
    for _ in range(3):
        rows_per_s, _ = report(rows=1, after_s=0.001)
        assert 0 < rows_per_s < 1, "reports in quick succession are no rate of thousands"


async def test_what_is_no_news_waits_for_the_heartbeat() -> None:
    reporter, sent = reporting()
    runner = make_runner(services_of(reporter), 1)
    reporter.note(runner.progress)
    # A moment longer than news would take, to see that nothing is sent.
    await asyncio.sleep(2 * NEWS_GATHERED_S)
    assert sent == []
    reporter.report()
    reporter.report()
    assert [len(report) for report in sent] == [1]


async def test_a_report_of_many_busy_feeds_is_bounded_and_each_has_its_turn() -> None:
    reporter, sent = reporting()
    around = services_of(reporter)
    runners = [make_runner(around, n) for n in range(2 * PROGRESS_MAX + 1)]
    for _ in range(3):
        for runner in runners:
            reporter.note(runner.progress)
        reporter.report()
    assert [len(report) for report in sent] == [PROGRESS_MAX] * 3
    told = {p.feed_id for report in sent for p in report}
    assert told == {runner.key[0] for runner in runners}


async def test_news_are_told_however_many_others_wait() -> None:
    reporter, sent = reporting()
    around = services_of(reporter)
    runners = [make_runner(around, n) for n in range(PROGRESS_MAX + 10)]
    for runner in runners:
        reporter.note(runner.progress)
    runners[-1]._connected()
    reporter.report()
    assert runners[-1].key[0] in {p.feed_id for p in sent[0]}
