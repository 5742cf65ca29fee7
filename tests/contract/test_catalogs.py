"""Catalogs against a real database: only what was made from one is changed with it, whoever is at it besides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from feedq.celery import tasks
from feedq.control.store.feeds import FeedChange, Feeds
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import LeaseState, Reason, Version
from feedq.errors import FeedqError
from feedq.settings import settings
from feedq.telemetry.logs import EventKind
from tests.asking import events_of
from tests.contract.harness import Harness, spec
from tests.contract.shell import Shell, opened_shell

Write = Callable[..., None]


def feed(name: str, **keys: Any) -> dict[str, Any]:
    source = {"url": "tcp://127.0.0.1:7001"}
    return {"name": name, "connector": "tcp", "source": source, "sink": {"table": "orders"}, **keys}


@pytest.fixture
def stored(harness: Harness) -> PostgresStore:
    return harness.store


@pytest.fixture
def shell(stored: PostgresStore, control_database_url: str, tmp_path: Path) -> Iterator[Shell]:
    with opened_shell(control_database_url, "redis://127.0.0.1:1/0") as opened:
        opened.environment |= {
            "FEEDQ_CATALOGS__CRM__KIND": "directory",
            "FEEDQ_CATALOGS__CRM__PATH": str(tmp_path),
        }
        yield opened


@pytest.fixture
def catalog(tmp_path: Path) -> Write:
    """Writes what the catalog has."""

    def write(*feeds: Mapping[str, Any]) -> None:
        (tmp_path / "feeds.json").write_bytes(msgspec.json.encode({"feeds": feeds}))

    return write


def names(store: PostgresStore) -> list[str]:
    return [feed.name for feed in store.feeds.declared()]


def test_a_sync_adds_changes_and_removes_and_says_so(
    shell: Shell, catalog: Write, stored: PostgresStore
) -> None:
    catalog(feed("a"), feed("b"), feed("c"))
    assert shell.ok("sync").splitlines() == [
        "+ a",
        "+ b",
        "+ c",
        "crm: 3 added, 0 changed, 0 removed, = 0 unchanged",
    ]
    catalog(feed("a"), feed("b", weight=2), feed("d"))
    assert shell.ok("sync", "crm").splitlines() == [
        "~ b",
        "    weight: 1.0 -> 2.0",
        "+ d",
        "- c",
        "crm: 1 added, 1 changed, 1 removed, = 1 unchanged",
    ]
    assert names(stored) == ["a", "b", "d"]
    view = stored.feeds.view("b")
    assert (view.feed.catalog, view.feed.generation, view.feed.spec.weight) == ("crm", 2, 2.0)
    assert (view.lease.state, view.lease.reason) == (LeaseState.IDLE, Reason.NEW)
    events = events_of(stored, "b")
    assert [event.kind for event in events] == [EventKind.FEED_EDITED, EventKind.FEED_ADDED]
    detail = events[0].detail
    assert (detail["generation"], detail["changed"], detail["catalog"]) == (2, ["weight"], "crm")


def test_feeds_of_others_are_left_alone_and_named(
    shell: Shell, catalog: Write, stored: PostgresStore
) -> None:
    stored.feeds.add(spec("mine"))
    stored.feeds.change([FeedChange(EventKind.FEED_ADDED, "theirs", spec("theirs"), catalog="other")])
    catalog(feed("mine", weight=3), feed("theirs", weight=3), feed("new"))
    done = shell.run("sync")
    assert done.exit_code == 1
    assert "feed 'mine': was declared by hand" in done.stderr
    assert "feed 'theirs': was made from catalog 'other'" in done.stderr
    assert [feed.spec.weight for feed in stored.feeds.declared()] == [1.0, 1.0, 1.0]
    catalog(feed("x"))
    shell.ok("sync", "crm", "--remove-up-to", "1")
    assert names(stored) == ["mine", "theirs", "x"]


def test_feeds_of_others_are_taken_over_when_that_is_said_and_run_on(
    shell: Shell, catalog: Write, stored: PostgresStore
) -> None:
    stored.feeds.add(spec("mine"))
    stored.feeds.change([FeedChange(EventKind.FEED_ADDED, "theirs", spec("theirs"), catalog="other")])
    stored.feeds.add(spec("apart"))
    catalog(feed("mine"), feed("theirs", weight=3))
    tried = shell.ok("sync", "--take-over", "--dry-run")
    assert "2 changed, 0 removed, = 0 unchanged (dry run)" in tried
    assert stored.feeds.get("mine").catalog is None
    done = shell.ok("sync", "--take-over")
    assert '~ mine\n    catalog: (unset) -> "crm"\n' in done
    assert "2 changed, 0 removed, = 0 unchanged" in done
    feeds = {one.name: (one.catalog, one.generation) for one in stored.feeds.declared()}
    assert feeds == {"mine": ("crm", 1), "theirs": ("crm", 2), "apart": (None, 1)}
    assert events_of(stored, "mine")[0].detail["changed"] == ["catalog"]
    assert "0 changed, 0 removed, = 2 unchanged" in shell.ok("sync")


def test_an_edit_during_a_sync_is_seen_by_the_next_one(
    shell: Shell, catalog: Write, stored: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog(feed("a"), feed("b"))
    shell.ok("sync")
    change = Feeds.change

    def edited_meanwhile(*args: Any) -> list[Version | FeedqError]:
        change(stored.feeds, [FeedChange(EventKind.FEED_EDITED, "b", spec("b", weight=7))])
        return change(*args)

    catalog(feed("a", weight=2), feed("b"))
    with monkeypatch.context() as patched:
        patched.setattr(Feeds, "change", edited_meanwhile)
        shell.ok("sync")
    assert "1 changed" in shell.ok("sync")
    assert stored.feeds.get("b").spec.weight == 1.0


def test_a_catalog_that_lost_most_of_its_feeds_is_refused_with_the_words_to_force_it(
    shell: Shell, catalog: Write, stored: PostgresStore
) -> None:
    many = [feed(f"f{number:03}") for number in range(200)]
    catalog(*many)
    shell.ok("sync")
    catalog(*many[:20], feed("new"))
    refused = shell.run("sync")
    assert refused.exit_code == 1
    assert "180 of the 200 feeds" in refused.stderr
    assert "so nothing was changed. To remove them: `feedq sync crm --remove-up-to 180`" in refused.stderr
    assert len(names(stored)) == 200
    assert "1 added, 0 changed, 180 removed" in shell.ok("sync", "crm", "--remove-up-to", "180")
    catalog(*many[:12], feed("new"))
    assert "8 removed" in shell.ok("sync")


def test_what_has_not_changed_is_left_alone_and_what_was_changed_by_hand_is_mended(
    shell: Shell, catalog: Write, stored: PostgresStore
) -> None:
    catalog(feed("a"), feed("b"))
    shell.ok("sync")
    same = "crm: 0 added, 0 changed, 0 removed, = 2 unchanged\n"
    assert shell.ok("sync") == same
    stored.feeds.edit(spec("a", weight=5))
    stored.feeds.remove("b")
    assert "1 added, 1 changed, 0 removed" in shell.ok("sync")
    assert stored.feeds.get("a").spec.weight == 1.0
    assert shell.ok("sync") == same
    # Other options, other feeds: the content alone does not say it.
    shell.environment["FEEDQ_CATALOGS__CRM__DEFAULTS"] = '{"tenant": "acme"}'
    assert "2 changed" in shell.ok("sync")


def test_one_wrong_entry_costs_one_feed(shell: Shell, catalog: Write, stored: PostgresStore) -> None:
    catalog(feed("a"), feed("b"), feed("c"))
    shell.ok("sync")
    catalog(feed("a", weight=2), feed("b", weight="heavy"), feed("d", connector="tpc"))
    done = shell.run("sync")
    assert done.exit_code == 1
    assert "feed 'b': weight: must be a number" in done.stderr
    assert "feed 'd': unknown connector 'tpc'" in done.stderr
    assert names(stored) == ["a", "b"]
    # An entry without a name may be that of any feed.
    catalog(feed("a", weight=3), {"connector": "tcp"})
    done = shell.run("sync")
    assert "1 feeds are no longer in 'crm'; they stay while some entry has no name" in done.stderr
    assert names(stored) == ["a", "b"]
    assert stored.feeds.get("a").spec.weight == 3.0


def test_apply_with_prune_leaves_the_feeds_of_catalogs(
    shell: Shell, catalog: Write, stored: PostgresStore
) -> None:
    catalog(feed("a"))
    shell.ok("sync")
    shell.ok(
        "apply", "-f", "-", "--prune", "--yes", given=msgspec.json.encode({"feeds": [feed("mine")]}).decode()
    )
    assert names(stored) == ["a", "mine"]
    shell.ok("apply", "-f", "-", "--prune", "--yes", given='{"feeds": []}')
    assert names(stored) == ["a"]


def test_one_catalog_is_synced_by_one_process_at_a_time(
    shell: Shell, catalog: Write, stored: PostgresStore
) -> None:
    catalog(feed("a"))
    with stored.syncing("crm"):
        refused = shell.run("sync")
    assert names(stored) == []
    assert "catalog 'crm' is being synced elsewhere" in refused.stderr
    shell.ok("sync")


def test_a_directory_that_is_away_changes_nothing(
    shell: Shell, catalog: Write, stored: PostgresStore, tmp_path: Path
) -> None:
    catalog(feed("a"))
    shell.ok("sync")
    shell.environment["FEEDQ_CATALOGS__CRM__PATH"] = str(tmp_path / "gone")
    done = shell.run("sync")
    assert (done.exit_code, "is not a directory" in done.stderr) == (1, True)
    assert names(stored) == ["a"]


def test_what_is_not_set_up_is_said(shell: Shell) -> None:
    assert "no catalog 'erp' here: set FEEDQ_CATALOGS__ERP__KIND" in shell.run("sync", "erp").stderr
    shell.environment["FEEDQ_CATALOGS__CRM__KIND"] = "carrier-pigeon"
    assert "unknown kind of catalog 'carrier-pigeon'; installed are: " in shell.run("sync").stderr
    shell.environment["FEEDQ_CATALOGS__CRM__KIND"] = "directory"
    shell.environment["FEEDQ_CATALOGS__CRM__PAHT"] = "typo"
    assert "unknown option" in shell.run("sync").stderr


def test_a_schedule_syncs_a_catalog_and_its_run_says_what_was_left_out(
    shell: Shell, catalog: Write, stored: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = "schedules: [{name: sync/crm, task: feedq.sync, kwargs: {catalog: crm}, every: 10m}]"
    shell.ok("apply", "-f", "-", given=given)
    spec = stored.jobs.schedules.get("sync/crm").spec
    assert (spec.every, spec.task, spec.kwargs) == (600, tasks.SYNC, {"catalog": "crm"})
    assert names(stored) == []
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tasks, "store", lambda: stored)
    settings.cache_clear()
    catalog(feed("a"), feed("b", weight="heavy"))
    with pytest.raises(FeedqError, match=r"catalog 'crm': 1 left out, such as .*feed 'b': weight: must be"):
        tasks.sync(**spec.kwargs)
    # Where this process may not declare feeds.
    monkeypatch.setenv("FEEDQ_SYNC_DATABASE_URL", shell.environment["FEEDQ_DATABASE_URL"])
    monkeypatch.delattr(tasks, "store")
    settings.cache_clear()
    catalog(feed("a"), feed("b"))
    tasks.sync(**spec.kwargs)
    assert names(stored) == ["a", "b"]
