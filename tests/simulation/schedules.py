"""Schedules under random faults, drawn from a seed: nodes fire them, workers run them, through one database.

Decisions are those of `feedq.core.schedule.ticks` and `feedq.core.schedule.outcome`; the statements of
`feedq.control.store.jobs` are said again here in a few lines. A firing is one transaction of rows and
watermarks. A node may die before it, or not learn that it was committed, and fire again what it has read; a
worker may die with a run, or freeze and speak up later; the database may be away for longer than anybody makes
up for.

After every step each tick of a schedule that lies behind its watermark has exactly one row, no run has ended
twice, none that must not has begun twice, and no more of a schedule run at a time than its overlap allows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random

from feedq.core.schedule import ticks
from feedq.core.schedule.model import (
    CatchUp,
    Every,
    Job,
    Overlap,
    ResumePolicy,
    Retries,
    RunState,
    Schedule,
    ScheduleSpec,
    ScheduleState,
    Semantics,
)
from feedq.core.schedule.outcome import TRANSITIONS, Ends, RunMove, after_attempt, after_loss
from feedq.core.schedule.ticks import MICROSECOND, DueRun, Firing, Grid, Unfinished

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
STEP_S = 1.0
FAULTS_S = 200.0
FAULT_CHANCE = 0.2
HEAL_S = 100.0
MOVES = {RunState.SUCCEEDED: RunMove.SUCCEED, RunState.FAILED: RunMove.FAIL}


class TickBroken(AssertionError):
    """A schedule did what it must not."""


@dataclass(slots=True)
class SimulatedRun:
    """A row of ``feedq.run``."""

    schedule: int
    tick: DueRun
    state: RunState
    due_at: datetime
    fence: int = 0
    """Grows with each claim: what is said under an earlier one matches nothing."""
    attempt: int = 0
    losses: int = 0
    ended: int = 0


@dataclass(frozen=True, slots=True)
class Claimed:
    """An attempt as its worker knows it."""

    run: SimulatedRun
    fence: int
    ends_at: datetime


class ScheduleTrouble:
    """A few schedules, and what happens to them."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = BEGAN
        self.schedules = {number: self._schedule(number) for number in range(1, 4)}
        self.rows: dict[int, dict[str, SimulatedRun]] = {number: {} for number in self.schedules}
        """By schedule and key."""
        self.forgotten: Counter[int] = Counter()
        """Ticks of pauses that were skipped, by schedule: they never were."""
        self.lines: list[str] = []
        self.is_away = False
        self._stale: list[tuple[int, Firing]] = []
        """What nodes have decided whose commits they did not hear of."""
        self._working: list[Claimed] = []
        self._frozen: list[Claimed] = []

    def _schedule(self, number: int) -> Schedule:
        rng = self.rng
        job = Job(
            "task",
            semantics=rng.choice([Semantics.AT_MOST_ONCE, Semantics.AT_LEAST_ONCE]),
            retries=Retries(rng.choice([0, 2]), first_s=3.0),
        )
        spec = ScheduleSpec(
            f"schedule-{number}",
            Every(rng.choice([2.0, 5.0, 7.0])),
            job,
            overlap=rng.choice(list(Overlap)),
            catch_up=rng.choice(list(CatchUp)),
            catch_up_max=3,
            catch_up_window_s=60.0,
            misfire_after_s=10.0,
            resume=rng.choice(list(ResumePolicy)),
        )
        new = Schedule(number, spec, ScheduleState.ACTIVE, None, None, 1, None, None, 0, BEGAN, BEGAN)
        return ticks.begin(new, now=BEGAN)

    # -- a step --------------------------------------------------------------------------------------

    def step(self, *, with_faults: bool) -> None:
        self.now += timedelta(seconds=STEP_S)
        if with_faults and self.rng.random() < FAULT_CHANCE:
            self.rng.choice(
                [self._go_away, self._pause, self._repeat, self._lose, self._freeze, self._thaw]
            )()
        if not self.is_away:
            for number in self.schedules:
                self._fire(number, with_faults=with_faults)
            self._claim()
            self._finish()
        self.check()

    def heal(self) -> None:
        self.is_away = False
        for _ in range(len(self._stale)):
            self._repeat()
        while self._frozen:
            self._thaw()
        for number, schedule in self.schedules.items():
            if schedule.state is ScheduleState.PAUSED:
                self._resume(number)

    # -- firing --------------------------------------------------------------------------------------

    def _fire(self, number: int, *, with_faults: bool) -> None:
        schedule = self.schedules[number]
        if schedule.state is ScheduleState.PAUSED:
            return
        if schedule.next_fire_at is None or schedule.next_fire_at > self.now:
            return
        firing = ticks.fire(schedule, now=self.now, unfinished=self._unfinished(number))
        if with_faults and self.rng.random() < 0.1:
            self.say(f"a node dies before it has fired schedule {number}")
            return
        self.write(number, firing)
        if with_faults and self.rng.random() < 0.1:
            self._stale.append((number, firing))  # it has not heard of the commit

    def write(self, number: int, firing: Firing) -> None:
        """One transaction: rows, and the watermark behind them, which only moves on."""
        if firing.cancel_others:
            for run in self._of(number):
                if run.state in (RunState.WAITING, RunState.RUNNING):
                    self._move(run, RunMove.CANCEL)
        for made in firing.runs:
            self.say(f"{made.ticks} ticks of schedule {number} from {made.key}: {made.state}")
            row = SimulatedRun(number, made, made.state, made.due_at)
            self.rows[number].setdefault(made.key, row)
        self.advance(number, firing)

    def advance(self, number: int, firing: Firing) -> None:
        schedule = self.schedules[number]
        before, after = schedule.next_tick_at, firing.next_tick_at
        if before is None or after is None or after >= before:
            self.schedules[number] = replace(schedule, next_tick_at=after, next_fire_at=firing.next_fire_at)

    def _unfinished(self, number: int) -> Unfinished:
        states = [run.state for run in self._of(number)]
        return Unfinished(states.count(RunState.WAITING), states.count(RunState.RUNNING))

    def _runs(self) -> list[SimulatedRun]:
        return [run for number in self.rows for run in self._of(number)]

    def _of(self, number: int) -> list[SimulatedRun]:
        return list(self.rows[number].values())

    # -- running -------------------------------------------------------------------------------------

    def _claim(self) -> None:
        for run in self._runs():
            if run.state is not RunState.WAITING or run.due_at > self.now or self.rng.random() < 0.3:
                continue
            spec = self.schedules[run.schedule].spec
            if spec.overlap is not Overlap.ALLOW_ALL and self._unfinished(run.schedule).running:
                continue
            self._move(run, RunMove.CLAIM)
            run.fence, run.attempt = run.fence + 1, run.attempt + 1
            takes = timedelta(seconds=self.rng.choice([1.0, 3.0, 12.0]))
            self._working.append(Claimed(run, run.fence, self.now + takes))

    def _finish(self) -> None:
        done = [claimed for claimed in self._working if claimed.ends_at <= self.now]
        self._working = [claimed for claimed in self._working if claimed.ends_at > self.now]
        for claimed in done:
            self._say(claimed, self.rng.choice([RunState.SUCCEEDED, RunState.SUCCEEDED, RunState.FAILED]))

    def _say(self, claimed: Claimed, ended: RunState) -> None:
        run = claimed.run
        if not self.is_theirs(claimed):
            return
        decided = after_attempt(self.schedules[run.schedule].spec.job, attempt=run.attempt, ended=ended)
        if isinstance(decided, Ends):
            self._move(run, MOVES[decided.state])
        else:
            self._move(run, RunMove.RETRY)
            run.due_at = self.now + timedelta(seconds=decided.seconds)

    def is_theirs(self, claimed: Claimed) -> bool:
        return claimed.run.state is RunState.RUNNING and claimed.run.fence == claimed.fence

    def _move(self, run: SimulatedRun, move: RunMove) -> None:
        self.say(f"run {run.tick.key} of schedule {run.schedule}: {move}")
        if (run.state, move) not in TRANSITIONS:
            raise self.broken(f"{run} cannot {move}")
        run.state = TRANSITIONS[run.state, move]
        run.ended += run.state.is_final

    # -- faults --------------------------------------------------------------------------------------

    def _go_away(self) -> None:
        self.is_away = not self.is_away
        self.say("the database goes away" if self.is_away else "the database comes back")

    def _pause(self) -> None:
        number = self.rng.choice(list(self.schedules))
        schedule = self.schedules[number]
        if schedule.state is ScheduleState.PAUSED:
            self._resume(number)
        else:
            self.schedules[number] = replace(schedule, state=ScheduleState.PAUSED)
            self.say(f"schedule {number} is paused")

    def _resume(self, number: int) -> None:
        self.say(f"schedule {number} goes on")
        schedule = self.schedules[number]
        self.schedules[number] = resumed = ticks.resumed(schedule, now=self.now)
        if schedule.spec.resume is ResumePolicy.SKIP:
            self.forgotten[number] += self._ticks(resumed) - self._ticks(schedule)
            if resumed.next_fire_at is None or resumed.next_fire_at <= self.now:
                raise self.broken(f"{schedule.spec} makes up for its pause")

    def _repeat(self) -> None:
        """A node that has not heard of its commit writes the same again, however late."""
        if self._stale:
            number, firing = self._stale.pop(0)
            self.write(number, replace(firing, cancel_others=False))

    def _lose(self) -> None:
        """A worker dies with what it runs, and is declared gone."""
        if self._working:
            self._declare_gone(self._working.pop(self.rng.randrange(len(self._working))))

    def _freeze(self) -> None:
        """A worker freezes, is declared gone, and wakes up later, when it says how its run has ended."""
        if self._working:
            claimed = self._working.pop(self.rng.randrange(len(self._working)))
            self._declare_gone(claimed)
            self._frozen.append(claimed)

    def _declare_gone(self, claimed: Claimed) -> None:
        run = claimed.run
        if not self.is_theirs(claimed):
            return
        run.losses += 1
        decided = after_loss(self.schedules[run.schedule].spec.job, losses=run.losses)
        self._move(run, RunMove.LOSE if isinstance(decided, Ends) else RunMove.RUN_AGAIN)

    def _thaw(self) -> None:
        if self._frozen:
            self._say(self._frozen.pop(0), RunState.SUCCEEDED)

    # -- what must hold ------------------------------------------------------------------------------

    @staticmethod
    def _ticks(schedule: Schedule) -> int:
        """How many lie between the beginning and the watermark."""
        assert schedule.next_tick_at is not None
        assert isinstance(schedule.spec.timing, Every)
        grid = Grid.of(schedule.spec.timing)
        return grid.count_before(schedule.next_tick_at) - grid.count_before(BEGAN + MICROSECOND)

    def check(self) -> None:
        """Raises `TickBroken`."""
        for number, schedule in self.schedules.items():
            ticks = self._ticks(schedule) - self.forgotten[number]
            covered = sum(run.tick.ticks for run in self._of(number))
            if covered != ticks:
                raise self.broken(f"{schedule.spec}: {ticks} ticks, {covered} in rows")
            unfinished, overlap = self._unfinished(number), schedule.spec.overlap
            if overlap is not Overlap.ALLOW_ALL and unfinished.running > 1:
                raise self.broken(f"{schedule.spec}: two run at once")
            # One that waits for its next attempt comes on top, and what is made up for.
            is_bounded = overlap is Overlap.BUFFER_ONE and schedule.spec.catch_up is CatchUp.SKIP
            if is_bounded and unfinished.waiting > 2:
                raise self.broken(f"{schedule.spec}: {unfinished.waiting} wait")
        for run in self._runs():
            semantics = self.schedules[run.schedule].spec.job.semantics
            if run.ended > 1:
                raise self.broken(f"{run} has ended twice")
            if semantics is Semantics.AT_MOST_ONCE and run.losses and run.state is not RunState.LOST:
                raise self.broken(f"{run} was lost, and begins again")

    def say(self, what: str) -> None:
        self.lines.append(f"{(self.now - BEGAN).total_seconds():g} s: {what}")

    def broken(self, problem: str) -> TickBroken:
        """With what has happened, to be raised."""
        self.say(problem)
        return TickBroken("\n".join([problem, *self.lines]))


def run_schedules(seed: int, *, faults_s: float = FAULTS_S) -> ScheduleTrouble:
    """Faults for so long, then none: every tick has one row, and every run comes to its end."""
    trouble = ScheduleTrouble(seed)
    for _ in range(round(faults_s / STEP_S)):
        trouble.step(with_faults=True)
    trouble.heal()
    for _ in range(round(HEAL_S / STEP_S)):
        trouble.step(with_faults=False)
    for schedule in trouble.schedules.values():
        if schedule.next_fire_at is None or schedule.next_fire_at <= trouble.now:
            raise trouble.broken(f"{schedule.spec} does not fire")
    old = trouble.now - timedelta(seconds=HEAL_S / 2)
    for run in trouble._runs():
        overlap = trouble.schedules[run.schedule].spec.overlap
        if not run.state.is_final and run.due_at < old and overlap is not Overlap.BUFFER_ALL:
            raise trouble.broken(f"{run} never ends")
    return trouble
