"""The fleet as the API tells of it: in numbers, what is wrong with it, and what feeds have in their sinks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from feedq.cli.api_documents import (
    NEVER,
    ONE_BY_ONE_MAX,
    ApiPart,
    pages,
    reader_of,
    timed,
    value_of,
    worker_view,
)
from feedq.control.store.fleet_state import FleetState, JobState, Leader
from feedq.core.model import JSON, ChangedCursor, Feed, Reason, StartCursor, Status
from feedq.sinks.base import DeadLetter
from feedq.verbs.catalogs.syncing import SkippedEntry, SyncReport
from feedq.verbs.diagnosis.checks import Check
from feedq.verbs.diagnosis.fleet_checks import Overview
from feedq.verbs.manifest.changes import Action, Change, OptionChange
from feedq.verbs.refused_records import ReplayOutcome
from feedq.verbs.report.fleet_data import FleetData

BACKFILL_TIMES = ("begun_at", "ended_at")


class ApiBackfills(ApiPart):
    """The verbs for backfills."""

    def begin(
        self, name: str, *, begin: JSON, end: JSON, rows_per_s: float | None, key: str | None, dry_run: bool
    ) -> dict[str, Any]:
        body = {"from": begin, "to": end, "rows_per_s": rows_per_s}
        headers = {} if key is None else {"Idempotency-Key": key}
        asked = {"dry_run": dry_run}
        made: dict[str, Any] = self._api.ask(
            "POST", "feeds", name, "backfill", body=body, headers=headers, arguments=asked
        )
        return timed(made, *BACKFILL_TIMES)

    def of(self, name: str) -> dict[str, Any]:
        return timed(self._api.get("feeds", name, "backfill"), *BACKFILL_TIMES)

    def running(self, *, tenant: str | None = None) -> list[dict[str, Any]]:
        return [timed(row, *BACKFILL_TIMES) for row in self._api.get("backfills", tenant=tenant)["backfills"]]

    def cancel(self, name: str) -> dict[str, Any]:
        return timed(self._api.ask("POST", "feeds", name, "backfill", "cancel"), *BACKFILL_TIMES)


class ApiSinkVerbs(ApiPart):
    """What `feedq.verbs.sink_verbs.SinkVerbs` is at the database."""

    @property
    def backfills(self) -> ApiBackfills:
        return ApiBackfills(self._api)

    def cursor(self, name: str) -> dict[str, Any]:
        return timed(self._api.get("feeds", name, "cursor"), "updated_at")

    def change_cursor(self, name: str, verb: str, *, dry_run: bool = False, **given: Any) -> ChangedCursor:
        if isinstance(given.get("to"), datetime):
            given["to"] = given["to"].isoformat()
        dry = {"dry_run": dry_run}
        made = self._api.ask("POST", "feeds", name, "cursor", verb, arguments=dry, body=given)
        return self._read(_changed_cursor, made)

    def letters(self, name: str, *, ids: Collection[int] = (), limit: int = 1) -> list[DeadLetter]:
        """The newest, or one of them."""
        path = ("feeds", name, "dead-letters")
        if ids:
            return self._read_all(_letter, [self._api.get(*path, str(one)) for one in ids])
        return self._read_all(_letter, self._api.get(*path, newest=limit)["dead_letters"])

    def replay(
        self, name: str, ids: Sequence[int], all_: bool, *, dry_run: bool = False, on_progress: object = None
    ) -> ReplayOutcome:
        """In one request, of which nothing is heard before its end."""
        made = self._chosen(name, "replay", ids, all_, dry_run=dry_run)
        refused = {int(one): error for one, error in made["refused"].items()}
        return ReplayOutcome(made["landed"], refused, made["passed_over"])

    def drop(self, name: str, ids: Sequence[int], all_: bool, *, dry_run: bool = False) -> int:
        return int(self._chosen(name, "drop", ids, all_, dry_run=dry_run)["dropped"])

    def _chosen(self, name: str, verb: str, ids: Sequence[int], all_: bool, *, dry_run: bool) -> Any:
        asked = {"ids": list(ids), "all": all_}
        path = ("feeds", name, "dead-letters", verb)
        return self._api.ask("POST", *path, arguments={"dry_run": dry_run}, body=asked)

    def adopt(self, name: str, *, number: int | None, force: bool, dry_run: bool = False) -> str:
        asked = {"number": number, "force": force}
        made = self._api.ask("POST", "feeds", name, "adopt", arguments={"dry_run": dry_run}, body=asked)
        return str(made["note"])

    def resumes(self, feeds: Sequence[Feed]) -> dict[str, StartCursor]:
        """Where feeds stand in their sinks, by name; those that have begun."""
        if len(feeds) <= ONE_BY_ONE_MAX:
            known = {feed.name: self.cursor(feed.name) for feed in feeds}
        else:
            rows = pages(self._api, "feeds", under="declarations", with_cursors="true")
            known = {row["name"]: row.get("resume", {}) for row in rows}
        return {
            name: StartCursor(found["cursor"], found["records"])
            for name, found in known.items()
            if found.get("cursor") is not None
        }


def fleet_of(document: Mapping[str, Any]) -> FleetData:
    """What the document of `feedq status` was made of, as far as it is shown."""
    feeds, workers, reconcile = document["feeds"], document["workers"], document["reconcile"]
    numbers = value_of(
        Overview,
        {**workers, **feeds},
        feeds=feeds["total"],
        by_status={Status(status): count for status, count in feeds["by_status"].items()},
        waiting={Reason(reason): count for reason, count in feeds["waiting"].items()},
        held=workers["feeds"],
        lacking=0,
        lacking_after_loss=0,
    )
    beat, jobs = document["beat"], document["schedules"]
    passed = {"pass_at": reconcile["last_pass_at"], "pass_age_s": reconcile["last_pass_age_s"]}
    leader = None if beat is None else value_of(Leader, beat)
    state = value_of(FleetState, passed, now=NEVER, leader=leader)
    job_state = value_of(JobState, {**jobs, **document["runs"]}, tripped=tuple(jobs["paused_by_failures"]))
    warnings = list(map(check_of, document["warnings"]))
    return FleetData(state, job_state, numbers, (), list(map(worker_view, workers["list"])), warnings)


def check_of(row: Mapping[str, Any]) -> Check:
    return value_of(Check, row, advice=row["advice"] or "")


def sync_report_of(row: Mapping[str, Any]) -> SyncReport:
    changes, left_out = list(map(_change, row["changes"])), row["left_out"]
    skipped = [value_of(SkippedEntry, one) for one in left_out]
    return value_of(SyncReport, row, catalog=row["name"], changes=changes, left_out=skipped)


def _change(row: Mapping[str, Any]) -> Change:
    options = tuple(value_of(OptionChange, one) for one in row["options"])
    return Change(Action(row["action"]), row["kind"], row["name"], options=options, note=row.get("note"))


def _letter(row: Mapping[str, Any]) -> DeadLetter:
    record = row["record"].encode() if "record" in row else bytes.fromhex(row["record_hex"])
    return value_of(DeadLetter, row, feed_id=0, record=record)


_changed_cursor = reader_of(ChangedCursor)
