"""Doctor's look at whose checkpoints a sink has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from pydantic import SecretStr

from feedq.control.store.feed_listing import SinkUse
from feedq.core.model import Feed, FeedSpec, Identity
from feedq.settings import Settings
from feedq.sinks.base import FenceRequest
from feedq.sinks.sql import SqlSink
from feedq.verbs.diagnosis.checks import Level
from feedq.verbs.diagnosis.server_checks import check_sinks
from tests.contract.sink_harness import SqliteHarness
from tests.contract.sink_stage import PATIENCE_S, RAW

AT = datetime(2026, 1, 1, tzinfo=UTC)
OURS, THEIRS = uuid4(), uuid4()


def feed(number: int, installation: UUID = OURS) -> Feed:
    spec = FeedSpec(name=f"f/{number}", connector="tcp", source={}, sink={"name": "own", "table": "raw"})
    return Feed(number, spec, 1, AT, AT, Identity(uuid4(), installation))


def ours_of(*feeds: Feed) -> tuple[list[SinkUse], tuple[UUID, set[str]]]:
    """What `check_sinks` is told of the feeds of this installation."""
    return [SinkUse("own", len(feeds), feeds)], (OURS, {str(one.identity.feed) for one in feeds})


def land(url: str, *feeds: Feed) -> None:
    sink = SqlSink(url, environment="default", worker_id=uuid4(), role="fencer")
    requests = [FenceRequest(one.id, one.name, 1, RAW, one.identity) for one in feeds]
    sink.fence(requests, lock_timeout_s=PATIENCE_S)
    sink.close()


@pytest.mark.parametrize("lately", [True, False])
def test_doctor_finds_strangers_orphans_and_another_installation(
    sqlite_sink: SqliteHarness, lately: bool
) -> None:
    ours, gone, theirs = feed(1), feed(2), feed(3, THEIRS)
    land(sqlite_sink.url, ours, gone, theirs)
    if not lately:
        before = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S.%f")
        sqlite_sink.query("UPDATE feedq_checkpoint SET updated_at = ?", [before])
    settings = Settings(sinks={"own": SecretStr(sqlite_sink.url)})
    found = {check.name: check for check in check_sinks(settings, *ours_of(ours)) if "own" in check.name}
    assert found["sink own"].level is Level.OK
    other = found["others on own" if lately else "strangers on own"]
    assert other.level is Level.WARN
    assert str(THEIRS) in other.detail
    assert "f/3" in other.detail
    assert ("FEEDQ_ENVIRONMENT" if lately else "feedq feed adopt") in other.advice
    assert "f/2" in found["orphans on own"].detail
    assert len(found) == 3


def test_doctor_says_nothing_of_a_sink_that_is_all_our_own(sqlite_sink: SqliteHarness) -> None:
    ours = feed(1)
    land(sqlite_sink.url, ours)
    settings = Settings(sinks={"own": SecretStr(sqlite_sink.url)})
    assert [c.name for c in check_sinks(settings, *ours_of(ours)) if "own" in c.name] == ["sink own"]
