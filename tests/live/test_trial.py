"""Trying a feed out: it ends in time whatever the connector does, and what is said is what a worker would meet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pydantic import SecretStr

from feedq.cli import main
from feedq.cli.invocation import Invocation
from feedq.connectors import base
from feedq.connectors.base import load_connector
from feedq.core.clock import SystemClock
from feedq.core.model import FeedSpec
from feedq.settings import Settings
from feedq.settings import settings as current_settings
from feedq.verbs import documents
from feedq.verbs import trial as trials
from feedq.verbs.trial import BYTES_MAX, StepOutcome, Trial, try_feed
from tests.contract.loopback import unanswering
from tests.live import odd_connector

ANSWERED_S = 60.0
"""For a connector that gives something or ends by itself: longer than a busy machine keeps it waiting."""


@pytest.fixture(autouse=True)
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    odd_connector.install(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    load_connector.cache_clear()
    # What is waited for in vain here is waited for in every run of the tests.
    monkeypatch.setattr(trials, "END_S", 0.2)
    # What ends by itself is given the time that a busy machine may need.
    monkeypatch.setattr(trials, "GRACE_S", ANSWERED_S)
    yield
    load_connector.cache_clear()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(sinks={"default": SecretStr(f"sqlite:///{tmp_path / 'sink'}")})


def tried(
    settings: Settings, how: str, *, timeout_s: float = ANSWERED_S, records: int = 1, **more: Any
) -> Trial:
    source = {"how": how, "format": "text", **more}
    spec = FeedSpec(name="acme/odd", connector="odd", source=source, sink={"table": "landed"})
    return try_feed(spec, settings, SystemClock(), records=records, timeout_s=timeout_s)


def said(trial: Trial, step: str) -> tuple[StepOutcome, str]:
    (found,) = [s for s in trial.steps if s.step == step]
    return found.outcome, found.detail


@pytest.mark.parametrize(
    ("how", "outcome", "detail"),
    [
        ("gives a record", StepOutcome.OK, "connected; 1 record"),
        ("hangs in its end", StepOutcome.OK, "connected; 1 record"),
        ("ends", StepOutcome.FAILED, "the source ended the stream"),
        ("raises", StepOutcome.FAILED, "unexpected error in connector: ZeroDivisionError('x')"),
        ("exits", StepOutcome.FAILED, "unexpected error in connector: SystemExit(3)"),
        (
            "gives no batch",
            StepOutcome.FAILED,
            "unexpected error in connector: TypeError('it gave a int instead of a Batch')",
        ),
    ],
)
def test_a_trial_ends_with_what_the_connector_did(
    settings: Settings, how: str, outcome: StepOutcome, detail: str
) -> None:
    began = time.monotonic()
    trial = tried(settings, how, text="x")
    assert said(trial, "source") == (outcome, detail)
    assert time.monotonic() - began < ANSWERED_S
    assert trial.ok is (outcome is StepOutcome.OK)


def test_a_trial_of_a_silent_source_ends_in_time(settings: Settings) -> None:
    trial = tried(settings, "is silent", timeout_s=0.1)
    assert said(trial, "source") == (StepOutcome.OK, "connected; no record within 0.1 s (--timeout)")


@pytest.mark.parametrize("how", ["keeps the loop busy", "swallows its cancellation"])
def test_a_trial_ends_in_time_though_its_connector_does_not(
    settings: Settings, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "GRACE_S", 0.2)
    began = time.monotonic()
    trial = tried(settings, how, timeout_s=0.1)
    assert said(trial, "source") == (
        StepOutcome.FAILED,
        "the connector did not end within 0.4 s of being told to",
    )
    assert time.monotonic() - began < odd_connector.BUSY_S
    assert not trial.ok


def test_a_cursor_that_could_not_be_kept_fails_the_trial_as_it_would_fail_the_feed(
    settings: Settings,
) -> None:
    trial = tried(settings, "has a cursor that is no JSON")
    outcome, detail = said(trial, "cursor")
    assert outcome is StepOutcome.FAILED
    assert detail.startswith("the cursor cannot be kept: ")
    assert trial.cursor is None


def test_what_a_source_repeats_of_a_secret_is_masked_in_records_and_cursor(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_TOKEN", "hunter2")
    trial = tried(settings, "repeats a secret", secrets={"token": "${env:ODD_TOKEN}"})
    assert trial.ok
    assert trial.records[0].record == b'{"said": "***"}'
    assert trial.cursor == {"next": ["/?token=***"]}
    assert "hunter2" not in repr(trial)


def test_large_records_end_a_trial_before_they_fill_the_memory(settings: Settings) -> None:
    trial = tried(settings, "is large", records=1_000)
    assert sum(len(preview.record) for preview in trial.records) < 2 * BYTES_MAX


def test_columns_are_proposed_from_the_first_records_as_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDQ_SINKS__DEFAULT", f"sqlite:///{tmp_path / 'sink'}")
    current_settings.cache_clear()
    records, manifest = tmp_path / "records", tmp_path / "feeds.yaml"
    records.write_text('{"id": 1, "price": 2.5}\n{"id": 2, "price": null}\n')
    source = {"path": str(records), "start": "beginning"}
    manifest.write_text(
        documents.dump(
            {"feeds": [{"name": "acme/x", "connector": "file", "source": source, "sink": {"table": "price"}}]}
        )
    )
    # The source has no more: nobody waits for it to the end.
    monkeypatch.setattr(trials, "QUIET_S", 0.1)
    asked = ["feed", "test", "acme/x", "-f", str(manifest), "--timeout", "60", "--infer"]
    began = time.monotonic()
    ran = CliRunner().invoke(main, asked, obj=Invocation(stack_dir=None))
    assert time.monotonic() - began < 30
    current_settings.cache_clear()
    assert ran.exit_code == 0, ran.output
    (entry,) = yaml.safe_load(ran.stdout)["feeds"]
    assert entry["sink"] == {
        "table": "price",
        "columns": {"id": "/id", "price": "/price"},
        "create": True,
        "types": {"id": "bigint", "price": "numeric"},
        "key": ["id"],
    }
    assert "target_state" not in entry
    assert "connected; 2 records" in ran.stderr


def test_a_source_that_does_not_answer_is_named_while_it_is_waited_for(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "UNANSWERED_S", 0.05)
    told: list[str] = []
    with unanswering() as where:
        spec = FeedSpec(
            name="acme/x", connector="tcp", source={"url": f"tcp://{where}"}, sink={"table": "landed"}
        )
        trial = try_feed(spec, settings, SystemClock(), timeout_s=0.3, on_waiting=told.append)
    waits = f"connecting to tcp://{where}: no answer for 0.05 s"
    assert told == [waits]
    assert said(trial, "source") == (StepOutcome.FAILED, f"{waits}; no record within 0.3 s (--timeout)")


def test_a_missing_file_is_said_at_once(settings: Settings) -> None:
    began = time.monotonic()
    spec = FeedSpec(
        name="acme/x", connector="file", source={"path": "/nowhere/at/all"}, sink={"table": "landed"}
    )
    trial = try_feed(spec, settings, SystemClock(), timeout_s=ANSWERED_S)
    assert said(trial, "source") == (
        StepOutcome.FAILED,
        "/nowhere/at/all: there is no such file on this worker (source.missing_timeout_s)",
    )
    assert time.monotonic() - began < ANSWERED_S / 2
