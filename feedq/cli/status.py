"""`feedq status`: the fleet at a glance."""

from __future__ import annotations

import click

from feedq.cli.invocation import Invocation, json_option, pass_invocation
from feedq.cli.output import write_facts, write_json
from feedq.cli.views import write_workers
from feedq.diagnosis import Level, Overview, fleet_checks, overview
from feedq.diagnosis.checks import counted
from feedq.diagnosis.fleet_checks import described
from feedq.diagnosis.schedule_checks import (
    declaration_checks,
    described_runs,
    described_schedules,
    job_checks,
)
from feedq.model import Status
from feedq.report import status_document
from feedq.store.insight import FleetState, JobState
from feedq.wording import duration, percent, printable, size


@click.command(short_help="The fleet at a glance, and what is wrong with it.")
@json_option
@pass_invocation
def status(invocation: Invocation) -> None:
    """Feeds by status and why they wait, moves, schedules and runs, workers with load and spread, beat,
    reconcile, and warnings.

    \b
    Example:
      feedq status
    """
    feeds, workers = invocation.store.feeds.views(), invocation.store.workers.views()
    state = invocation.fleet_state()
    numbers = overview(feeds, workers)
    interval_s, rules = invocation.settings.reconcile_interval_s, invocation.settings.rules
    jobs = invocation.job_state()
    checks = [*fleet_checks(feeds, workers, state, reconcile_interval_s=interval_s, rules=rules)]
    if jobs is not None:
        checks += job_checks(jobs)
    if jobs is not None and jobs.schedules:
        checks += declaration_checks(invocation.jobs.schedules.specs())
    warnings = [check for check in checks if check.level is not Level.OK]
    if invocation.json:
        write_json(status_document(numbers, workers, state, warnings, jobs=jobs))
        return
    _write_numbers(numbers, state, jobs)
    if workers:
        click.echo()
        write_workers(workers, now=invocation.clock.now())
    if warnings:
        click.echo()
    for check in warnings:
        click.echo(f"{check.level.value}: {check.name}: {printable(check.detail)}\n      -> {check.advice}")


def _write_numbers(numbers: Overview, state: FleetState | None, jobs: JobState | None) -> None:
    counts = ", ".join(f"{numbers.by_status[s]} {s}" for s in Status if numbers.by_status.get(s))
    spread = "" if numbers.spread is None else f", {numbers.spread[0]} to {numbers.spread[1]} each"
    leader = None if state is None else state.leader
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
    ]
    if state is not None:
        led = (
            printable(f"{leader.host}:{leader.pid}")
            if leader is not None and leader.leads
            else "nobody leads"
        )
        age = "never" if state.pass_age_s is None else f"{duration(state.pass_age_s)} ago"
        facts += [("beat", led), ("reconcile", age)]
    if jobs is not None and (jobs.schedules or jobs.waiting or jobs.running):
        facts += [
            ("schedules", described_schedules(jobs)),
            ("runs", described_runs(jobs)),
            ("job slots", f"{jobs.slots} on {counted(jobs.workers, 'worker')}"),
        ]
    write_facts(facts)
