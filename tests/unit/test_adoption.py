"""Feeds that find in their sink what a namesake has left there: on the command line and in doctor's eyes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from feedq.core.model import Feed, TargetState
from feedq.records.batch import Records
from feedq.sinks.base import FeedWrite, Fenced, FenceRequest, Target, Unusable
from feedq.verbs import manifests
from tests.fakes.sink import SinkFile
from tests.unit.command import Command
from tests.unit.data_path import AT

pytestmark = pytest.mark.usefixtures("control")

TARGET = Target("t", "json")


class Site(Command):
    """An installation with a new control database, whose feeds get the numbers from ``first`` on.

    That of the one before it is lost.
    """

    def __init__(self, file: SinkFile, *, first: int = 1) -> None:
        self.sink = file.sink()
        super().__init__(self.sink)
        self.store.control.observe("UPDATE feedq.installation SET id = gen_random_uuid()")
        self.store.control.observe(
            f"SELECT setval(pg_get_serial_sequence('feedq.feed', 'id'), {first}, false)"
        )

    def apply(self, *names: str, options: tuple[str, ...] = ()) -> str:
        feeds = [
            {"name": n, "connector": "tcp", "source": {"url": "tcp://127.0.0.1:1"}, "sink": {"table": "t"}}
            for n in names
        ]
        ran = self.run("apply", "-f", "-", *options, given=msgspec.json.encode({"feeds": feeds}))
        assert ran.exit_code == 0, ran.output
        return ran.output

    def declared(self, name: str) -> Feed:
        return self.store.feeds.get(name)

    def fence(self, name: str, *, epoch: int = 1) -> Any:
        return self.fence_as(self.declared(name), epoch=epoch)

    def fence_as(self, feed: Feed, *, epoch: int) -> Any:
        request = FenceRequest(feed.id, feed.name, epoch, TARGET, feed.identity)
        (outcome,) = self.sink.fence([request], lock_timeout_s=0)
        return outcome

    def land(self, name: str, cursor: int) -> None:
        fenced = self.fence(name)
        assert isinstance(fenced, Fenced), fenced
        batch = Records(records=(b"%d" % cursor,)).batch(cursor=cursor, received_at=AT)
        feed = self.declared(name)
        self.sink.write([FeedWrite(feed.id, name, 1, TARGET, (batch,), fenced.commit_id)])


@pytest.fixture
def file() -> SinkFile:
    return SinkFile(environment="default")


@pytest.fixture
def lost(file: SinkFile) -> Site:
    """Two feeds that have landed, and an installation that nobody knows any more."""
    site = Site(file)
    site.apply("acme/big", "acme/other")
    site.land("acme/big", 318)
    site.land("acme/other", 7)
    return site


def test_feeds_declared_anew_get_no_cursor_by_a_number_that_was_given_out_before(
    file: SinkFile, lost: Site
) -> None:
    """The control database was lost; a new feed stands before the others in the file."""
    site = Site(file)
    said = site.apply("acme/a-new-one", "acme/big", "acme/other")
    assert said.count("--adopt continues from its cursor") == 2
    assert "sink 'default' has a checkpoint of feed 'acme/big' of installation" in said
    for name in ("acme/a-new-one", "acme/big", "acme/other"):
        assert isinstance(site.fence(name), Unusable)


def test_applying_with_adopt_goes_on_from_the_checkpoints_of_a_lost_installation(
    file: SinkFile, lost: Site
) -> None:
    before = lost.declared("acme/big")
    site = Site(file, first=1_001)
    said = site.apply("acme/other", "acme/big", "acme/new", options=("--adopt",))
    assert said.count(": adopted") == 2
    assert {n: site.fence(n).cursor for n in ("acme/big", "acme/other", "acme/new")} == {
        "acme/big": 318,
        "acme/other": 7,
        "acme/new": None,
    }
    assert {view.feed.spec.target_state for view in site.store.feeds.views()} == {TargetState.RUNNING}
    assert isinstance(lost.fence_as(before, epoch=9), Unusable)


def test_a_feed_that_was_removed_and_declared_again_begins_anew_unless_it_adopts(lost: Site) -> None:
    asked = lost.run("feed", "remove", "acme/big")
    assert "they begin where their sources begin" in asked.output
    lost.run("feed", "remove", "acme/big", "--yes")
    assert "--adopt continues" in lost.apply("acme/big")
    assert lost.fence("acme/big").cursor is None
    ran = lost.run("feed", "adopt", "acme/big", "--yes")
    assert (ran.exit_code, ran.output) == (0, "acme/big adopted\n")
    assert lost.fence("acme/big").cursor == 318
    assert lost.declared("acme/big").generation == 2


def test_a_feed_that_has_landed_records_of_its_own_adopts_by_force_only(lost: Site) -> None:
    lost.run("feed", "remove", "acme/big", "--yes")
    lost.apply("acme/big")
    lost.land("acme/big", 1)
    refused = lost.run("feed", "adopt", "acme/big", "--yes")
    assert refused.exit_code == 1
    assert "has landed 1 records of its own" in refused.output
    assert lost.run("feed", "adopt", "acme/big", "--yes", "--force").exit_code == 0
    assert lost.fence("acme/big").cursor == 318


def test_there_may_be_nothing_to_adopt_or_too_much(file: SinkFile, lost: Site) -> None:
    assert "no other feed named 'acme/big' has a checkpoint" in lost.run("feed", "adopt", "acme/big").output
    for cursor in (1, 2):
        lost.run("feed", "remove", "acme/big", "--yes")
        lost.apply("acme/big")
        lost.land("acme/big", cursor)
    lost.run("feed", "remove", "acme/big", "--yes")
    lost.apply("acme/big")
    asked = lost.run("feed", "adopt", "acme/big", "--yes")
    assert "several checkpoints of that name; choose one with --number" in asked.output
    assert lost.run("feed", "adopt", "acme/big", "--yes", "--number", "1").exit_code == 0
    assert lost.fence("acme/big").cursor == 318


def test_an_export_with_cursors_goes_on_elsewhere(lost: Site) -> None:
    lost.apply("acme/idle")
    exported = lost.ok("export", "--with-cursors")
    elsewhere = Site(SinkFile(environment="default"), first=1_001)
    elsewhere.ok("apply", "-f", "-", given=exported)
    found = [elsewhere.fence(name) for name in ("acme/big", "acme/other", "acme/idle")]
    assert [(one.cursor, one.records) for one in found] == [(318, 1), (7, 1), (None, 0)]
    assert "= 3 unchanged" in elsewhere.ok("apply", "-f", "-", given=exported)


@pytest.mark.parametrize("resume", ["7", "{records: 1}", "{cursor: 1, records: -1}", "{cursor: 1, more: 2}"])
def test_a_resume_that_says_no_cursor_is_refused(resume: str) -> None:
    text = f"feeds: [{{name: a, connector: tcp, sink: {{table: t}}, resume: {resume}}}]"
    (problem,) = manifests.parse(text, origin="f.yaml").problems
    assert "resume: must be {cursor: …" in str(problem)


def test_a_sink_that_cannot_be_asked_keeps_nobody_from_declaring(file: SinkFile) -> None:
    file.away = True
    assert "could not be asked whether it knows these feeds" in Site(file).apply("acme/new")


def test_a_feed_is_not_declared_with_a_cursor_that_its_sink_cannot_be_given(file: SinkFile) -> None:
    site = Site(file)
    feed = "name: a, connector: tcp, source: {url: 'tcp://127.0.0.1:1'}, sink: {name: nowhere, table: t}"
    ran = site.run("apply", "-f", "-", given=f"feeds: [{{{feed}, resume: {{cursor: 7}}}}]")
    assert (ran.exit_code, "0 of 1 changes were made" in ran.output) == (2, True)
    assert site.store.feeds.views() == []
