"""The order and the words of what somebody has to look at."""

from __future__ import annotations

from dataclasses import replace

from feedq.core.model import FeedView, LeaseState, Reason, Unmet
from feedq.verbs.diagnosis.checks import Level, fail, warn
from feedq.verbs.diagnosis.fleet_checks import tallies_of
from feedq.verbs.report.problem_list import ListedProblem, problems
from tests.unit.test_diagnosis import NOW, feed


def listed(*views: FeedView, more: int = 0) -> list[ListedProblem]:
    checks = [fail("beat", "no beat leads", "start one"), warn("feeds", "2 failing: a, b", "look")]
    tallies = [replace(tally, feeds=tally.feeds + more) for tally in tallies_of(views)]
    return problems(views, checks, tallies, {view.feed.name: None for view in views})


def test_what_fails_for_all_comes_first_and_then_the_worst_feeds() -> None:
    waits = feed("w", reason=Reason.NO_MATCH)
    backs_off = feed("b", reason=Reason.BACKOFF)
    failed = feed("f", reason=Reason.FAILED, last_error="no such option")
    found = [(one.name, one.feed) for one in listed(waits, backs_off, failed)]
    assert found == [("beat", None), ("failed", "f"), ("backoff", "b"), ("waiting", "w")]


def test_a_feed_that_streams_and_is_not_as_expected_is_listed_with_its_since() -> None:
    streams = feed("s", state=LeaseState.RUNNING, connected=True)
    unmet = Unmet("max_silence", NOW, "silent for 5 minutes")
    (_, one) = listed(replace(streams, unmet=(unmet,)))
    assert (one.level, one.name, one.feed, one.since) == (Level.WARN, "expectation", "s", NOW)
    assert one.detail == "silent for 5 minutes"


def test_a_feed_where_all_is_well_is_not_listed() -> None:
    assert [one.name for one in listed(feed("s", state=LeaseState.RUNNING, connected=True))] == ["beat"]


def test_passwords_in_errors_are_masked() -> None:
    failed = feed("f", reason=Reason.FAILED, last_error="postgresql://u:hunter2@db/x is away")
    assert "hunter2" not in listed(failed)[1].detail


def test_those_that_are_not_listed_one_by_one_are_counted() -> None:
    last = listed(feed("f", reason=Reason.FAILED), more=7)[-1]
    assert last.detail == "7 more feeds are failed"
    assert last.advice == "`feedq feed list --status failed` lists them"
