"""`feedq doctor`: what is wrong with this installation, and how to mend it."""

from __future__ import annotations

import sys
from collections import Counter

import click
from rich.console import Console
from rich.text import Text

from feedq.cli.invocation import Invocation, json_option, pass_invocation
from feedq.cli.output import write_json
from feedq.diagnosis import Check, Level
from feedq.diagnosis.rounds import diagnose
from feedq.wording import printable

STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
NAME_WIDTH = 20


@click.command(short_help="Check database, broker, sinks, workers and limits; say what to mend.")
@json_option
@pass_invocation
def doctor(invocation: Invocation) -> None:
    """Check everything that feedq stands on, from this machine and with its settings.

    One line a check: ok, warn or FAIL, and below it what to mend. Exit status 1 when a check fails; warnings
    do not count.

    \b
    Example:
      feedq doctor
    """
    found: list[Check] = []
    for check in diagnose(
        invocation.store,
        invocation.fleet_state,
        invocation.job_state,
        lambda: invocation.jobs.schedules.specs(),
        invocation.settings,
    ):
        found.append(check)
        if not invocation.json:
            _write(check)
    counts = Counter(check.level for check in found)
    if invocation.json:
        write_json(
            {
                "healthy": not counts[Level.FAIL],
                "checks": [
                    {"name": c.name, "level": c.level.value, "detail": c.detail, "advice": c.advice or None}
                    for c in found
                ],
            }
        )
    else:
        click.echo(f"{counts[Level.OK]} ok, {counts[Level.WARN]} warnings, {counts[Level.FAIL]} failed")
    if counts[Level.FAIL]:
        raise SystemExit(1)


def _write(check: Check) -> None:
    """At once: some checks take seconds, and people want to see which."""
    line = Text.assemble(
        (check.level.value.ljust(5), STYLES[check.level]),
        check.name.ljust(NAME_WIDTH),
        printable(check.detail),
    )
    advice = f"{' ' * (5 + NAME_WIDTH)}-> {printable(check.advice)}" if check.advice else ""
    if sys.stdout.isatty():
        Console(soft_wrap=True, highlight=False).print(line)
    else:
        click.echo(line.plain)
    if advice:
        click.echo(advice)
    sys.stdout.flush()
