"""The schedules of a fleet: what people do to them, and what must hold of their runs whatever has happened.

Each tick fires once; the overlap policy holds; a run begins under one fence after the other, none before its time,
and one that is to run at most once does; and a run ends as its code did, unless its worker was in trouble.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from random import Random

from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.core.schedule.model import RunState
from feedq.core.schedule.spec import Overlap, ScheduleSpec, Semantics
from tests.fakes.clock import NEW_YEAR
from tests.fakes.control import ControlDatabase
from tests.fakes.invariants import RunRow
from tests.fakes.jobs import FakeJobs, Ledger
from tests.schedules import schedule_spec

SCHEDULES = 3
BACKFILLED = 4
BUFFER_MAX = 3
ON_TIME_S = 300.0
"""Longer than a story: no tick is missed."""
UNFINISHED_MAX: Mapping[Overlap, int] = {
    Overlap.SKIP: 1,
    Overlap.CANCEL_OTHER: 1,
    Overlap.BUFFER_ONE: 2,
    Overlap.BUFFER_ALL: BUFFER_MAX + 1,
}
"""How many runs of a schedule may not have ended at a time, those of backfills left out."""


class FleetRuns:
    """Schedules of a fleet, and the runs that they have had."""

    def __init__(
        self, control: ControlDatabase, schedules: ScheduleStore, rng: Random, *, ttl_s: float
    ) -> None:
        self.ledger = Ledger()
        self._control, self._schedules, self._rng, self._ttl_s = control, schedules, rng, ttl_s
        self._asked = 0
        self._cancelled: set[int] = set()
        self._seen: dict[int, RunRow] = {}
        """Runs as they stood when they were looked at last."""
        self._begun: dict[int, int] = {}
        """How often they had been begun by then."""
        self._specs: dict[int, ScheduleSpec] = {}
        self._first: dict[int, datetime | None] = {}
        for number in range(SCHEDULES):
            added = schedules.add(self._spec(number))
            self._specs[added.id] = added.spec
            self._first[added.id] = added.next_tick_at

    def _spec(self, number: int) -> ScheduleSpec:
        rng = self._rng
        return schedule_spec(
            f"s{number}",
            every=rng.choice([2.0, 4.0, 7.0]),
            anchor=NEW_YEAR,
            overlap=rng.choice(list(Overlap)),
            buffer_max=BUFFER_MAX,
            semantics=rng.choice([Semantics.AT_MOST_ONCE, Semantics.AT_LEAST_ONCE]),
            retries={"limit": rng.choice([0, 2]), "first": rng.choice([0.5, 5.0])},
            start_deadline=rng.choice([None, 5.0]),
            misfire_after=rng.choice([3.0, ON_TIME_S]),
        )

    # -- what people do ------------------------------------------------------------------------------

    def trigger(self) -> str:
        name = self._rng.choice(list(self._specs.values())).name
        self._asked += 1
        self._schedules.trigger(name, key=str(self._asked))
        return f"triggers {name}"

    def backfill(self) -> str:
        spec = self._rng.choice(list(self._specs.values()))
        self._asked += BACKFILLED
        assert spec.every is not None
        ticks = [NEW_YEAR - timedelta(seconds=spec.every * (self._asked - n)) for n in range(BACKFILLED)]
        self._schedules.backfill(spec.name, ticks)
        return f"backfills {spec.name}"

    def cancel(self) -> str:
        unfinished = [row.id for row in self._control.runs() if not row.has_ended]
        if not unfinished:
            return "has nothing to cancel"
        which = self._rng.choice(unfinished)
        self._cancelled.add(which)
        self._schedules.cancel_run(which)
        return f"cancels run {which}"

    def pause_all(self) -> None:
        for spec in self._specs.values():
            self._schedules.pause(spec.name)

    def all_have_ended(self) -> bool:
        return all(row.has_ended for row in self._control.runs())

    # -- what must hold ------------------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        yield from self.ledger.early
        if not self._control.runs_changed:
            return
        rows = self._control.runs()
        yield from self._problems_of_ticks(rows)
        yield from self._problems_of_overlap(rows)
        for row in rows:
            yield from self._problems_of_attempts(row)
            yield from self._problems_of_end(row)
            self._seen[row.id] = row

    def _problems_of_ticks(self, rows: list[RunRow]) -> Iterator[str]:
        counted = Counter[int]()
        for row in rows:
            if row.kind == "tick":
                counted[row.schedule_id] += row.ticks
        for schedule_id, watermark in self._control.observe("EXECUTE schedules"):
            every, first = self._specs[schedule_id].every, self._first[schedule_id]
            assert every is not None
            assert first is not None
            passed = round((watermark - first).total_seconds() / every)
            if counted[schedule_id] != passed:
                yield f"of {passed} ticks of schedule {schedule_id} {counted[schedule_id]} are counted"

    def _problems_of_overlap(self, rows: list[RunRow]) -> Iterator[str]:
        unfinished = Counter(row.schedule_id for row in rows if not row.has_ended and row.kind != "backfill")
        for schedule_id, spec in self._specs.items():
            most = UNFINISHED_MAX.get(spec.overlap)
            # What was missed is made up for beside what has not ended.
            if most is not None and spec.misfire_after == ON_TIME_S and unfinished[schedule_id] > most:
                yield f"{unfinished[schedule_id]} runs of {spec.name} ({spec.overlap}) have not ended"

    def _problems_of_attempts(self, row: RunRow) -> Iterator[str]:
        begun = self.ledger.begun.get(row.id, [])
        if len(begun) == self._begun.get(row.id, 0):
            return
        self._begun[row.id] = len(begun)
        if begun != sorted(set(begun)):
            yield f"run {row.id} was begun under {begun}"
        for fence in begun[:-1]:
            ended = self.ledger.ended.get((row.id, fence))
            may_repeat = self._specs[row.schedule_id].semantics is Semantics.AT_LEAST_ONCE
            if ended is not RunState.FAILED and not may_repeat:
                yield f"run {row.id} may run once, and was begun under {begun}"
            if ended is RunState.SUCCEEDED and self._is_well(self.ledger.holders[row.id, fence]):
                yield f"run {row.id} had succeeded under {fence}, and was begun under {begun}"

    def _problems_of_end(self, row: RunRow) -> Iterator[str]:
        ended = self.ledger.ended.get((row.id, row.fence))
        if row.state in ("succeeded", "failed") and ended != row.state:
            yield f"run {row.id}@{row.fence} is {row.state}; its code: {ended}"
        before = self._seen.get(row.id)
        if before is not None and row.losses > before.losses:
            holder = self.ledger.holders.get((row.id, before.fence))
            if holder is not None and self._is_well(holder):
                yield f"run {row.id}@{before.fence} was taken from a worker that lives"
        if row.reason == "cancelled by hand" and row.id not in self._cancelled:
            yield f"nobody has cancelled run {row.id}"

    def _is_well(self, jobs: FakeJobs) -> bool:
        """Whether it has been without any trouble for so long that nobody may take anything from it."""
        return self._control.clock.monotonic() - jobs.troubled_at > 2 * self._ttl_s
