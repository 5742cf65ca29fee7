"""The order, the groups and the words of what somebody has to look at."""

from __future__ import annotations

from dataclasses import replace

from feedq.core.model import FeedView, LeaseState, Reason, Unmet
from feedq.core.selection import Selection
from feedq.verbs.diagnosis.checks import Check, Level, fail, problems, warn
from tests.unit.test_diagnosis import NOW, feed, warnings


def listed(*views: FeedView) -> list[Check]:
    checks = [warn("capacity", "few places", "start another"), fail("beat", "no beat leads", "start one")]
    return problems([*checks, *warnings(list(views))])


def silent(name: str, tenant: str = "default") -> FeedView:
    streams = feed(name, state=LeaseState.RUNNING, connected=True, tenant=tenant)
    return replace(streams, unmet=(Unmet("max_silence", NOW, "silent for 5 minutes"),))


def test_what_fails_for_all_comes_first_and_then_the_worst_feeds() -> None:
    waits = feed("w", reason=Reason.NO_MATCH)
    backs_off = feed("b", reason=Reason.BACKOFF)
    failed = feed("f", reason=Reason.FAILED, last_error="no such option")
    found = [(one.name, one.feed) for one in listed(waits, backs_off, failed)]
    assert found == [("beat", None), ("failed", "f"), ("backoff", "b"), ("waiting", "w"), ("capacity", None)]


def test_a_feed_that_streams_and_is_not_as_expected_is_listed_with_its_since() -> None:
    (_, one, _) = listed(silent("s"))
    assert (one.level, one.name, one.feed, one.since) == (Level.WARN, "expectation", "s", NOW)
    assert one.detail == "silent for 5 minutes"


def test_feeds_of_a_tenant_with_the_same_trouble_are_one_problem_that_says_how_to_list_them() -> None:
    feeds = [silent(f"acme/{n:02}", "acme") for n in range(50)]
    _, one, other, _ = listed(*feeds, silent("beta/x", "beta"))
    assert (one.feeds, one.tenant, one.feed, one.since) == (50, "acme", None, NOW)
    assert one.detail == (
        "acme/00, acme/01, acme/02, acme/03, acme/04 and 45 more; of acme/00: silent for 5 minutes"
    )
    assert one.select == Selection(tenant="acme", unmet=True)
    assert one.advice.endswith("; `feedq feed list --tenant acme --unmet` lists them")
    assert (other.feeds, other.feed, other.select) == (1, "beta/x", None)


def test_feeds_without_a_tenant_are_chosen_where_nobody_elses_would_be() -> None:
    (_, one, _) = listed(silent("a", ""), silent("b", ""))
    assert (one.feeds, one.select) == (2, Selection(unmet=True))
    assert one.advice.endswith("; `feedq feed list --unmet` lists them")
    (_, one, other, _) = listed(silent("a", ""), silent("b", ""), silent("acme/x", "acme"))
    assert (one.feeds, one.select, other.feed) == (2, None, "acme/x")


def test_feeds_of_many_tenants_are_counted_together_beyond_the_first() -> None:
    found = listed(*(silent(f"t{n}/x", f"t{n}") for n in range(9)))[1:-1]
    assert [(one.tenant, one.feeds) for one in found] == [("t0", 1), ("t1", 1), ("t2", 1), (None, 6)]
    assert found[-1].select == Selection(unmet=True)


def test_a_feed_where_all_is_well_is_not_listed() -> None:
    found = listed(feed("s", state=LeaseState.RUNNING, connected=True))
    assert [one.name for one in found] == ["beat", "capacity"]


def test_passwords_in_errors_are_masked() -> None:
    failed = feed("f", reason=Reason.FAILED, last_error="postgresql://u:hunter2@db/x is away")
    assert "hunter2" not in listed(failed)[1].detail
