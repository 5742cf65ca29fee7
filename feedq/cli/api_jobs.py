"""Schedules, runs and job queues over the API: as far as commands ask for them, as `JobStore`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import orjson

from feedq.cli.api_connection import ApiConnection
from feedq.cli.api_documents import NEVER, ApiPart, pages, value_of, whole_pages
from feedq.core.schedule.entries import ScheduleEntry, plain_queue, plain_schedule
from feedq.core.schedule.model import (
    Beat,
    Job,
    Queue,
    QueueDepth,
    Run,
    RunState,
    Schedule,
    ScheduleSpec,
    ScheduleState,
    ScheduleView,
    UnreadableSpec,
)
from feedq.core.schedule.plain import spec_from_json
from feedq.errors import Conflict, InvalidInput, Outdated

TICK = timedelta(microseconds=1)


class ApiSchedules(ApiPart):
    """Schedules and their runs."""

    def views(
        self, *, prefix: str = "", after: str = "", state: ScheduleState | None = None, limit: int
    ) -> list[ScheduleView]:
        rows = pages(self._api, "schedules", most=limit, prefix=prefix, after=after, state=state)
        return self._read_all(_schedule_view, rows)

    def urgent(self, *, failing: Sequence[str] = (), limit: int) -> list[ScheduleView]:
        """The server knows itself which fail."""
        rows = self._api.get("schedules", urgent="true", limit=limit)["schedules"]
        return self._read_all(_schedule_view, rows)

    def view(self, name: str) -> ScheduleView:
        return self._read(_schedule_view, self._api.get("schedules", name))

    def get(self, name: str) -> Schedule:
        """With all arguments of its job."""
        keys = self._api.get("schedules", name, "declaration")
        found = self.view(name).schedule
        if isinstance(found.spec.timing, Beat):
            return found
        return replace(found, spec=ScheduleEntry.valid(keys).spec)

    def specs(self) -> Mapping[str, ScheduleSpec | UnreadableSpec]:
        found: dict[str, ScheduleSpec | UnreadableSpec] = {}
        for page in whole_pages(self._api, "schedules", under="declarations"):
            found |= {keys["name"]: ScheduleEntry.valid(keys).spec for keys in page["schedules"]}
            found |= {name: UnreadableSpec(why, paused=False) for name, why in page["unreadable"].items()}
        return dict(sorted(found.items()))

    def unserved(self, names: Collection[str]) -> Mapping[str, str]:
        views = {name: self.view(name) for name in names}
        return {name: view.unserved for name, view in views.items() if view.unserved is not None}

    def counts(self, name: str) -> Mapping[RunState, int]:
        found = self._api.get("schedules", name)["counts"]
        return {RunState(state): count for state, count in found.items()}

    def runs(self, name: str | None = None, *, states: Sequence[RunState] = (), limit: int) -> list[Run]:
        rows = pages(self._api, "runs", most=limit, schedule=name, state=[one.value for one in states])
        return self._read_all(_run, rows)

    def run(self, run_id: int) -> Run:
        return self._read(_run, self._api.get("runs", str(run_id)))

    def add(self, spec: ScheduleSpec) -> Schedule:
        try:
            return self._put(spec, {"If-None-Match": "*"})
        except Outdated:
            raise Conflict(
                f"schedule {spec.name!r} exists already; `feedq schedule set` changes it"
            ) from None

    def edit(self, name: str, spec: ScheduleSpec) -> Schedule:
        return self._put(spec, {})

    def _put(self, spec: ScheduleSpec, headers: Mapping[str, str]) -> Schedule:
        keys = plain_schedule(spec) | {"paused": spec.paused}
        self._api.ask("PUT", "schedules", spec.name, body=keys, headers=headers)
        return replace(self.view(spec.name).schedule, spec=spec)

    def remove(self, name: str) -> None:
        self._api.ask("DELETE", "schedules", name)

    def pause(self, name: str, *, until: datetime | None = None, reason: str | None = None) -> None:
        asked = {"until": None if until is None else until.isoformat(), "reason": reason}
        self._api.ask("POST", "schedules", name, "pause", body=asked)

    def resume(self, name: str) -> None:
        self._api.ask("POST", "schedules", name, "resume")

    def purge(self, name: str) -> int:
        return int(self._api.ask("POST", "schedules", name, "purge")["cancelled"])

    def trigger(self, name: str, *, key: str | None = None, job: Job | None = None) -> Run:
        if key is not None and not key.isascii():
            raise InvalidInput("--key: at a server it must be ASCII")
        headers = {} if key is None else {"Idempotency-Key": key}
        asked = None if job is None else {"args": list(job.args), "kwargs": dict(job.kwargs)}
        return self._read(
            _run, self._api.ask("POST", "schedules", name, "trigger", body=asked, headers=headers)
        )

    def backfill(self, name: str, ticks: Sequence[datetime]) -> tuple[int, int]:
        asked = {"from": ticks[0].isoformat(), "to": (ticks[-1] + TICK).isoformat()}
        made = self._api.ask("POST", "schedules", name, "backfill", body=asked)
        return made["made"], made["existing"]

    def cancel_run(self, run_id: int) -> Run:
        return self._read(_run, self._api.ask("POST", "runs", str(run_id), "cancel"))


class ApiQueues(ApiPart):
    """Limits of job queues."""

    def listed(self) -> list[QueueDepth]:
        names = ("name", "rate_per_s", "burst", "concurrency")
        rows = self._api.get("queues")["queues"]
        return [
            (Queue(**{name: row[name] for name in names}), row["waiting"], row["running"]) for row in rows
        ]

    def all(self) -> list[Queue]:
        return [queue for queue, _, _ in self.listed() if queue != Queue(queue.name)]

    def set(self, queue: Queue) -> None:
        self._api.ask("PUT", "queues", queue.name, body=plain_queue(queue))

    def remove(self, name: str) -> None:
        self._api.ask("DELETE", "queues", name)


class ApiJobs:
    """What `feedq.control.store.postgresql.JobStore` is at the database."""

    def __init__(self, api: ApiConnection) -> None:
        self.queues, self.schedules = ApiQueues(api), ApiSchedules(api)


def _run(row: Mapping[str, Any]) -> Run:
    return value_of(Run, row, schedule_id=0, job=Job(row["task"], queue=row["queue"]))


def _schedule_view(row: Mapping[str, Any]) -> ScheduleView:
    """Of a row in a list, and of the document of one schedule, which has its whole declaration."""
    job = row.get("job", {"task": row["task"], "queue": row["queue"], "semantics": row["semantics"]})
    timing, job, policy = map(orjson.dumps, (row["timing"], job, row.get("policy", {})))
    spec = spec_from_json(row["name"], timing=timing, job=job, policy=policy)
    schedule = value_of(Schedule, {"created_at": NEVER, "updated_at": NEVER, **row}, spec=spec)
    last = None if row["last"] is None else _run(row["last"])
    return ScheduleView(schedule, last, row["waiting"], row["running"], row.get("unserved"))
