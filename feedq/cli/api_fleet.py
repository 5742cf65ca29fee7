"""The fleet as the API tells of it: in numbers, what is wrong with it, and what feeds have in their sinks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from feedq.catalogs.comparing import SkippedEntry
from feedq.catalogs.syncing import SyncReport
from feedq.cli.api_connection import ApiConnection
from feedq.cli.api_documents import NEVER, ONE_BY_ONE_MAX, fields_of, pages, read, worker_view
from feedq.diagnosis.checks import Check, Level
from feedq.diagnosis.fleet_checks import Overview
from feedq.manifest.changes import Action, Change, OptionChange
from feedq.model import ChangedCursor, Feed, Reason, StartCursor, Status
from feedq.refused_records import ReplayOutcome
from feedq.report.fleet_data import FleetData
from feedq.report.problem_list import ListedProblem
from feedq.report.rows import LEADER_FIELDS, OVERVIEW_FIELDS, RUN_NUMBERS
from feedq.sinks.base import Checkpoint, DeadLetter
from feedq.store.fleet_state import FleetState, JobState, Leader

PROBLEM_FIELDS = tuple(field.name for field in fields(ListedProblem))
NO_COMMIT = UUID(int=0)
"""What the API does not say of a change of a cursor."""


class ApiSinkVerbs:
    """What `feedq.sink_verbs.SinkVerbs` is at the database."""

    def __init__(self, api: ApiConnection) -> None:
        self._api = api
        self._letter = partial(read, api, _letter)
        self._change = partial(read, api, _changed_cursor)

    def cursor(self, name: str) -> dict[str, Any]:
        found = self._api.get("feeds", name, "cursor")
        begun = {} if found["updated_at"] is None else fields_of(Checkpoint, ("updated_at",), found)
        return {**found, **begun}

    def cursor_changes(self, name: str, *, limit: int) -> list[ChangedCursor]:
        rows = self._api.get("feeds", name, "cursor", "history")["changes"]
        return list(map(self._change, rows[:limit]))

    def change_cursor(
        self, name: str, verb: str, *, delete: bool = False, dry_run: bool = False, **given: Any
    ) -> ChangedCursor:
        if isinstance(given.get("to"), datetime):
            given["to"] = given["to"].isoformat()
        asked = given | {"delete": delete}
        dry = {"dry_run": dry_run}
        return self._change(self._api.ask("POST", "feeds", name, "cursor", verb, arguments=dry, body=asked))

    def letters(self, name: str, *, ids: Collection[int] = (), limit: int = 1) -> list[DeadLetter]:
        """The newest, or one of them."""
        path = ("feeds", name, "dead-letters")
        if ids:
            return [self._letter(self._api.get(*path, str(one))) for one in ids]
        return list(map(self._letter, self._api.get(*path, newest=limit)["dead_letters"]))

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
    numbers = Overview(
        feeds=feeds["total"],
        by_status={Status(status): count for status, count in feeds["by_status"].items()},
        wanted=feeds["wanted"],
        waiting={Reason(reason): count for reason, count in feeds["waiting"].items()},
        moving=feeds["moving"],
        held=workers["feeds"],
        lacking=0,
        lacking_after_loss=0,
        records_total=feeds["records_total"],
        **fields_of(Overview, OVERVIEW_FIELDS, workers),
    )
    beat = document["beat"]
    leader = None if beat is None else Leader(**fields_of(Leader, LEADER_FIELDS, beat))
    passed = {"pass_at": reconcile["last_pass_at"], "pass_age_s": reconcile["last_pass_age_s"]}
    state = FleetState(now=NEVER, leader=leader, **fields_of(FleetState, ("pass_at", "pass_age_s"), passed))
    jobs = document["schedules"]
    job_state = JobState(
        tripped=tuple(jobs["paused_by_failures"]),
        **fields_of(JobState, ("active", "paused", "overdue_s"), jobs),
        **fields_of(JobState, RUN_NUMBERS, document["runs"]),
    )
    warnings = list(map(check_of, document["warnings"]))
    return FleetData(state, job_state, numbers, (), list(map(worker_view, workers["list"])), warnings)


def check_of(row: Mapping[str, Any]) -> Check:
    return Check(row["name"], Level(row["level"]), row["detail"], row["advice"] or "", row.get("status"))


def problem_of(row: Mapping[str, Any]) -> ListedProblem:
    return ListedProblem(**fields_of(ListedProblem, PROBLEM_FIELDS, row))


def sync_report_of(row: Mapping[str, Any]) -> SyncReport:
    names = ("unchanged", "kept", "taken_over", "is_same")
    return SyncReport(
        row["name"],
        changes=list(map(_change, row["changes"])),
        left_out=[SkippedEntry(one["where"], one["name"], one["what"]) for one in row["left_out"]],
        **{name: row[name] for name in names},
    )


def _change(row: Mapping[str, Any]) -> Change:
    options = tuple(OptionChange(o["option"], o["before"], o["after"]) for o in row["options"])
    return Change(Action(row["action"]), row["kind"], row["name"], options=options, note=row.get("note"))


def _letter(row: Mapping[str, Any]) -> DeadLetter:
    record = row["record"].encode() if "record" in row else bytes.fromhex(row["record_hex"])
    names = ("id", "feed", "epoch", "error", "at")
    known = fields_of(DeadLetter, names, row)
    return DeadLetter(feed_id=0, record=record, cursor=row["cursor"], **known)


def _changed_cursor(row: Mapping[str, Any]) -> ChangedCursor:
    names = ("at", "verb", "records", "deleted")
    known = fields_of(ChangedCursor, names, row)
    return ChangedCursor(before=row["before"], after=row["after"], commit_id=NO_COMMIT, **known)
