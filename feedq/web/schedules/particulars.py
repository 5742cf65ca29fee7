"""What a schedule's own page says of it, line by line: where it stands, and how it is declared."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from feedq.report import shown
from feedq.schedule.model import CatchUp, Cron, Job, Overlap, ScheduleSpec, ScheduleView
from feedq.schedule.words import instant, timing_words
from feedq.web.particulars import DetailLine, as_json, moment
from feedq.wording import duration


def standing_lines(view: ScheduleView, *, now: datetime) -> Iterator[DetailLine]:
    schedule = view.schedule
    yield DetailLine("State", schedule.state)
    if schedule.pause_reason is not None:
        yield DetailLine("Paused because", schedule.pause_reason)
    yield from moment("Paused until", schedule.paused_until, now)
    if view.unserved is not None:
        yield DetailLine("Cannot run", view.unserved)
    yield from moment("Next tick", schedule.next_tick_at, now)
    if schedule.next_fire_at != schedule.next_tick_at:
        yield from moment("Fires, with its jitter", schedule.next_fire_at, now)
    yield DetailLine("Waiting", f"{view.waiting:,}")
    yield DetailLine("Running", f"{view.running:,}")
    yield DetailLine("Not succeeded in a row", f"{schedule.failures:,}")
    yield DetailLine("Generation", str(schedule.generation))
    yield from moment("Declared", schedule.created_at, now)
    yield from moment("Changed", schedule.updated_at, now)


def declaration_lines(spec: ScheduleSpec) -> Iterator[DetailLine]:
    yield DetailLine("When", timing_words(spec.timing))
    if isinstance(spec.timing, Cron):
        cron = spec.timing
        yield DetailLine("When clocks change", f"gap: {cron.gap}, fold: {cron.fold}")
    yield from _bounds_lines(spec)
    yield from _job_lines(spec.job)
    yield DetailLine("Overlap", f"{spec.overlap}{_buffer(spec)}")
    yield DetailLine("Catch-up", _catch_up(spec))
    if spec.start_deadline_s is not None:
        yield DetailLine("Start deadline", duration(spec.start_deadline_s))
    if spec.jitter_s:
        yield DetailLine("Jitter", f"up to {duration(spec.jitter_s)}")
    kept = {"runs": spec.keep_runs, "days": spec.keep_days}
    if any(kept.values()):
        yield DetailLine(
            "History kept", ", ".join(f"{n:,} {what}" for what, n in kept.items() if n is not None)
        )
    yield DetailLine("When resumed", f"ticks of the pause: {spec.resume}")
    if spec.pause_on_failure is not None:
        yield DetailLine("Pauses itself", f"after {spec.pause_on_failure} in a row that did not succeed")


def _bounds_lines(spec: ScheduleSpec) -> Iterator[DetailLine]:
    if spec.start_at is not None:
        yield DetailLine("Begins", instant(spec.start_at))
    if spec.end_at is not None:
        yield DetailLine("Ends", instant(spec.end_at))
    if spec.exclude.dates:
        yield DetailLine("Days left out", f"{', '.join(spec.exclude.dates)} ({spec.exclude.zone})")
    if spec.exclude.calendars:
        yield DetailLine("Calendars left out", f"{', '.join(spec.exclude.calendars)} ({spec.exclude.zone})")


def _job_lines(job: Job) -> Iterator[DetailLine]:
    yield DetailLine("Task", job.task)
    if job.args:
        yield DetailLine("Arguments", as_json(shown(job.args), indented=True), code=True)
    if job.kwargs:
        yield DetailLine("Named arguments", as_json(shown(job.kwargs), indented=True), code=True)
    if job.selector:
        yield DetailLine("Only on workers with", ", ".join(f"{k}={v}" for k, v in job.selector.items()))
    yield DetailLine("Semantics", job.semantics)
    yield DetailLine("Queue", job.queue)
    if job.priority:
        yield DetailLine("Priority", str(job.priority))
    yield DetailLine("Time-out", "none" if job.timeout_s is None else duration(job.timeout_s))
    if job.retries.limit:
        retries = job.retries
        waits = f"{duration(retries.first_s)}, × {retries.factor:g}, up to {duration(retries.max_s)}"
        yield DetailLine("Retries", f"{retries.limit}, after {waits}")


def _buffer(spec: ScheduleSpec) -> str:
    return f", up to {spec.buffer_max:,} waiting" if spec.overlap is Overlap.BUFFER_ALL else ""


def _catch_up(spec: ScheduleSpec) -> str:
    late = f"a tick is a misfire {duration(spec.misfire_after_s)} after it was due"
    if spec.catch_up is CatchUp.SKIP:
        return f"{spec.catch_up}; {late}"
    bound = f", at most {spec.catch_up_max:,}" if spec.catch_up is CatchUp.ALL else ""
    return f"{spec.catch_up} within {duration(spec.catch_up_window_s)}{bound}; {late}"
