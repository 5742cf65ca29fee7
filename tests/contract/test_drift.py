"""A running feed whose records have a new field: status, history, the command and the API."""

from __future__ import annotations

import json

import pytest

from feedq.control.store.history import EventFilter
from feedq.core.model import FeedSpec, LeaseState
from feedq.core.notices import notice_sentences
from feedq.sinks import field_watch
from feedq.telemetry.event_names import EventKind
from tests.contract.shell import opened_shell
from tests.contract.test_supervisor import Stage, stage
from tests.waiting import until

__all__ = ["stage"]


def test_a_new_field_is_told_once_and_becomes_a_column_when_somebody_says_so(
    stage: Stage, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(field_watch, "LOOK_AGAIN_S", 0.1)
    harness = stage.harness
    harness.execute("DROP TABLE IF EXISTS drifting; CREATE TABLE drifting (n bigint)")
    source = {"url": f"tcp://127.0.0.1:{stage.source.port}"}
    columns = {"n": {"pointer": "/n", "missing": "default", "default": 0}}
    sink = {"table": "drifting", "columns": columns, "drift": "event"}
    stage.store.feeds.add(FeedSpec(name="a", connector="tcp", source=source, sink=sink, tenant="acme"))
    stage.reconcile()
    until(lambda: stage.lease().noticed, "it is in the status")
    assert stage.lease().noticed == {"field:seq": "bigint"}
    (sentence,) = notice_sentences(stage.lease().noticed)
    assert sentence == "no column takes the field 'seq' (bigint) of the records"
    told = EventFilter((EventKind.FEED_NOTICED, EventKind.COLUMNS_ADDED))
    (first,) = stage.harness.store.history.before(told)
    assert first.event.detail == {"field:seq": "bigint"}
    with opened_shell(harness.url, broker_url) as shell:
        assert sentence in shell.ok("feed", "show", "a")
        asked = json.loads(shell.ok("feed", "drift", "a", "--json"))
        (statement,) = asked["statements"]
        assert (asked["fields"], asked["applied"]) == ({"seq": "bigint"}, False)
        refused = shell.run("feed", "drift", "a", "--apply", "--yes")
        assert (refused.exit_code, "sink.drift is event" in refused.stderr) == (1, True)
        shell.ok("feed", "set", "a", "sink.drift=add")
        stage.reconcile()
        until(lambda: stage.lease().state is LeaseState.IDLE, "it stopped")
        stage.reconcile()
        until(lambda: stage.lease().generation == 2 and stage.lease().noticed, "it is told again")
        assert (
            shell.ok("feed", "drift", "a", "--apply", "--yes", "--reason", "wanted")
            .strip()
            .endswith(statement)
        )
    until(lambda: harness.execute("SELECT 1 FROM drifting WHERE seq > 0 LIMIT 1"), "the column is filled")
    until(lambda: stage.lease().noticed == {"field:seq": "bigint, added"}, "and that is told")
    kinds = {one.event.kind: one.event.detail for one in stage.harness.store.history.before(told)}
    assert kinds[EventKind.COLUMNS_ADDED]["statements"] == [statement]
    assert kinds[EventKind.COLUMNS_ADDED]["by"]["why"] == "wanted"
