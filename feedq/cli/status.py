"""`feedq status`, the fleet at a glance, and `doctor`: what is wrong, and how to mend it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from feedq.cli.invocation import Invocation, pass_invocation, shows
from feedq.cli.output import answer, write_lines, write_table

if TYPE_CHECKING:
    from feedq.control.store.fleet_state import FleetState, JobState
    from feedq.verbs.diagnosis.checks import Check
    from feedq.verbs.diagnosis.fleet_checks import Overview
    from feedq.verbs.report.details import DetailLine
    from feedq.verbs.report.problem_list import ListedProblem

STYLES: Mapping[str, Mapping[str, Any]] = {
    "ok": {"fg": "green"},
    "warn": {"fg": "yellow"},
    "FAIL": {"fg": "red", "bold": True},
    "not checked": {"dim": True},
}
"""By the level of a check."""
LEVEL_WIDTH = 13
NAME_WIDTH = 20


@click.command(short_help="The fleet at a glance, and what is wrong with it.")
@click.option("--problems", is_flag=True, help="Instead, everything that needs a look, worst first.")
@shows
def status(invocation: Invocation, *, problems: bool) -> None:
    """Feeds by status and why they wait, moves, schedules and runs, workers with load and spread, beat,
    reconcile, and warnings.

    With --problems: feeds one by one, workers, sinks, schedules, beat and reconcile, each with why, since when
    where that is known, and what to do.

    \b
    Example:
      feedq status --watch
      feedq status --problems
    """
    from feedq.cli.tables import all_worker_columns
    from feedq.verbs.fleet import show_status
    from feedq.verbs.wording import printable

    if problems:
        _answer_problems(invocation)
        return
    found = invocation.do(show_status)
    numbers, workers, state, jobs = found.numbers, found.workers, found.state, found.jobs

    def write() -> None:
        write_lines(_numbers(numbers, state, jobs))
        if workers:
            click.echo()
            write_table(workers, all_worker_columns(invocation.clock.now()))
        if found.warnings:
            click.echo()
        for check in found.warnings:
            click.echo(f"{check.level}: {check.name}: {printable(check.detail)}\n      -> {check.advice}")

    answer(invocation, found, write)


def _numbers(numbers: Overview, state: FleetState, jobs: JobState) -> list[DetailLine]:
    from feedq.core.model import Status
    from feedq.verbs.diagnosis.fleet_checks import described
    from feedq.verbs.diagnosis.schedule_checks import described_runs, described_schedules
    from feedq.verbs.report.details import detail_lines
    from feedq.verbs.wording import counted, duration, percent, size

    counts = ", ".join(f"{numbers.by_status[s]} {s}" for s in Status if numbers.by_status.get(s))
    spread = "" if numbers.spread is None else f", {numbers.spread[0]} to {numbers.spread[1]} each"
    leader = state.leader
    led = f"{leader.host}:{leader.pid}" if leader is not None and leader.leads else "nobody leads"
    waiting = ", ".join(f"{count} {reason}" for reason, count in sorted(numbers.waiting.items()))
    landing = f"{numbers.rows_per_s:,.0f} rows/s, {size(numbers.bytes_per_s)}/s"
    facts: list[tuple[str, str | None]] = [
        ("feeds", f"{numbers.feeds}" + (f": {counts}" if counts else "")),
        ("waiting", waiting or None),
        ("moving", f"{numbers.moving} on their way to another worker" if numbers.moving else None),
        ("records", f"{numbers.records_total:,} ({landing})"),
        ("workers", described(numbers)),
        (
            "load",
            f"{numbers.held} of {numbers.capacity} places taken "
            f"({percent(numbers.held, numbers.capacity)}){spread}",
        ),
        ("beat", led),
        ("reconcile", "never" if state.pass_age_s is None else f"{duration(state.pass_age_s)} ago"),
    ]
    if jobs.are_used:
        facts += [
            ("schedules", described_schedules(jobs)),
            ("runs", described_runs(jobs)),
            ("job slots", f"{jobs.slots} on {counted(jobs.workers, 'worker')}"),
        ]
    return detail_lines(facts)


@click.command(short_help="Check database, broker, sinks, workers and limits; say what to mend.")
@click.option("--alerts", is_flag=True, help="Also send a message to each alert target that is set up here.")
@pass_invocation
def doctor(invocation: Invocation, *, alerts: bool) -> None:
    """Check everything that feedq stands on, from this machine and with its settings, or from the server's.

    One line a check: ok, warn, FAIL, or not checked where nobody could look; and below it what to mend, or to
    do so that it can be checked. Exit status 1 when a check fails; nothing else counts.

    \b
    Example:
      feedq doctor
      FEEDQ_ALERT_URLS='mailto://…  slack://…' feedq doctor --alerts
    """
    from feedq.verbs.diagnosis.alert_checks import ALERTS
    from feedq.verbs.diagnosis.checks import Level
    from feedq.verbs.fleet import Diagnosis, diagnose_fleet, try_alerts

    if invocation.server is None:
        invocation.keep_log_quiet()
    with invocation.progress("checks"):
        found = invocation.do(diagnose_fleet)
    if alerts:
        tried = invocation.do(try_alerts)
        checks = [check for check in found.checks if check.name != ALERTS]
        found = Diagnosis(found.healthy and tried.healthy, [*checks, *tried.checks])
    counts = Counter(check.level for check in found.checks)
    numbers = (counts[level] for level in (Level.OK, Level.WARN, Level.FAIL, Level.NOT_CHECKED))

    def write() -> None:
        for check in found.checks:
            _write_check(check)
        click.echo("{} ok, {} warnings, {} failed, {} not checked".format(*numbers))

    answer(invocation, found, write)
    if not found.healthy:
        raise SystemExit(1)


def _write_check(check: Check) -> None:
    from feedq.verbs.wording import printable

    level, what = check.level.value.ljust(LEVEL_WIDTH), check.name.ljust(NAME_WIDTH) + printable(check.detail)
    advice = f"{' ' * (LEVEL_WIDTH + NAME_WIDTH)}-> {printable(check.advice)}" if check.advice else ""
    click.echo(click.style(level, **STYLES[check.level]) + what)
    if advice:
        click.echo(advice)


def _answer_problems(invocation: Invocation) -> None:
    from feedq.verbs.fleet import list_problems

    found = invocation.do(list_problems).items
    lines = [line for one in found for line in _lines(one)] or ["nothing needs a look"]
    answer(invocation, found, "\n".join(lines))


def _lines(one: ListedProblem) -> list[str]:
    from feedq.verbs.wording import counted, printable, stamp

    whose = ""
    if one.feeds:
        of = f" of {one.tenant}" if one.tenant else ""
        whose = f" {one.feed or counted(one.feeds, 'feed') + of}"
    since = "" if one.since is None else f", since {stamp(one.since)}"
    return [f"{one.level}: {one.name}{whose}{since}: {printable(one.detail)}", f"      -> {one.advice}"]
