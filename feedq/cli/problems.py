"""`feedq problems`: everything that somebody has to look at, worst first."""

from __future__ import annotations

import click

from feedq.cli.invocation import Invocation, output_option, pass_invocation, watchable
from feedq.cli.output import answer
from feedq.report.problem_list import ListedProblem
from feedq.report.rows import problem_row
from feedq.wording import printable, stamp


@click.command(short_help="Everything that somebody has to look at, worst first.")
@output_option
@pass_invocation
@watchable
def problems(invocation: Invocation) -> None:
    """List what is wrong, worst first: feeds one by one, and workers, sinks, schedules, beat and reconcile.

    Each with why, since when where that is known, and what to do.

    \b
    Example:
      feedq problems
    """
    found = invocation.problems()
    lines = [line for one in found for line in _lines(one)] or ["nothing needs a look"]
    answer(invocation, {"problems": list(map(problem_row, found))}, "\n".join(lines))


def _lines(one: ListedProblem) -> list[str]:
    whose = "" if one.feed is None else f" {one.feed}"
    since = "" if one.since is None else f", since {stamp(one.since)}"
    return [f"{one.level}: {one.name}{whose}{since}: {printable(one.detail)}", f"      -> {one.advice}"]
