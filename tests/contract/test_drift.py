"""A running feed whose records have a new field: status, history, the command and the API."""

from __future__ import annotations

import json

import pytest
from pydantic import SecretStr

from feedq.api.endpoint import Endpoint
from feedq.control.store.history import EventFilter
from feedq.core.model import FeedSpec, LeaseState
from feedq.core.notices import notice_sentences
from feedq.core.roles import AccessRole
from feedq.settings import Settings
from feedq.sinks import field_watch
from feedq.telemetry.event_names import EventKind
from tests.api_client import ApiClient
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
    sink = {"table": "drifting", "columns": {"n": "/n"}, "drift": "event"}
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


def test_the_api_adds_columns_for_an_operator_of_the_tenant(stage: Stage) -> None:
    harness = stage.harness
    harness.execute("DROP TABLE IF EXISTS drifting; CREATE TABLE drifting (n bigint)")
    sink = {"table": "drifting", "columns": {"n": "/n"}, "drift": "add"}
    feed = stage.store.feeds.add(
        FeedSpec(name="a", connector="tcp", source={"url": "tcp://127.0.0.1:1"}, sink=sink, tenant="acme")
    )
    harness.execute(
        "UPDATE feedq.progress SET noticed = %s WHERE feed_id = %s",
        json.dumps({"field:price": "numeric", "field:done": "text, added", "csv_header": "no"}),
        feed.id,
    )
    endpoint = Endpoint.of(harness.store, Settings(database_url=SecretStr(harness.url)))
    token = harness.store.tokens.add("t", AccessRole.OPERATOR, tenant="acme", lasts_s=60)
    with ApiClient(endpoint, token=token) as api:
        shown = api.json("/feeds/a/drift")
        assert (shown["fields"], shown["drift"]) == ({"price": "numeric"}, "add")
        assert api.ask("POST", "/feeds/a/drift", json={"dry_run": True}).json() == shown
        done = api.ask("POST", "/feeds/a/drift").json()
        assert (done["statements"], done["applied"]) == (shown["statements"], True)
        assert api.json("/feeds/a/drift")["statements"] == []
    assert harness.execute("SELECT price FROM drifting") == []
