"""`feedq schedule queue`: limits of job queues."""

from __future__ import annotations

from typing import Any

import click

from feedq.cli.invocation import Invocation, changes, pass_invocation
from feedq.cli.output import answer_done, answer_list
from feedq.cli.tables import QUEUE_COLUMNS
from feedq.core.schedule.entries import QueueEntry, plain_queue
from feedq.core.schedule.model import Queue
from feedq.core.values import NONE
from feedq.errors import InvalidInput
from feedq.verbs.report.rows import queue_row


@click.group(short_help="Limits of job queues: set, remove, list.")
def queue() -> None:
    """Limits of job queues. A queue without limits needs no declaration: schedules just name it.

    \b
    Example:
      feedq schedule queue set reports --rate 2 --concurrency 4
    """


@queue.command("set")
@click.argument("name")
@click.option("--rate", metavar="N", help="Runs that may start a second, on average; or none.")
@click.option("--burst", type=float, help="Runs that may start at once after a pause. [default: 1]")
@click.option("--concurrency", metavar="N", help="Runs at a time on all workers; or none.")
@changes
def set_queue(
    invocation: Invocation, *, name: str, rate: str | None, burst: float | None, concurrency: str | None
) -> None:
    """Set limits of a queue; those that are not given stay as they are.

    \b
    Example:
      feedq schedule queue set reports --rate 2 --burst 10 --concurrency 4
    """
    if rate is None and burst is None and concurrency is None:
        raise click.UsageError("no limit; give --rate, --burst or --concurrency")
    queues = invocation.jobs.queues
    before = next((found for found in queues.all() if found.name == name), Queue(name))
    given = {
        "rate_per_s": _number(rate, float, option="--rate"),
        "burst": burst,
        "concurrency": _number(concurrency, int, option="--concurrency"),
    }
    keys = plain_queue(before) | {key: value for key, value in given.items() if value is not None}
    queues.set(QueueEntry.valid({key: value for key, value in keys.items() if value != NONE}).spec)
    answer_done(invocation, [name], "set")


@queue.command("remove")
@click.argument("name")
@changes
def remove_queue(invocation: Invocation, *, name: str) -> None:
    """Lift all limits of a queue. Its runs stay.

    \b
    Example:
      feedq schedule queue remove reports
    """
    invocation.jobs.queues.remove(name)
    answer_done(invocation, [name], "removed")


@queue.command("list")
@pass_invocation
def list_queues(invocation: Invocation) -> None:
    """The queues that have limits, or runs that wait or run.

    \b
    Example:
      feedq schedule queue list
    """
    empty = "no queue has limits, or runs that wait or run; `feedq schedule queue set` sets limits"
    answer_list(invocation, invocation.jobs.queues.listed(), queue_row, QUEUE_COLUMNS, empty=empty)


def _number(text: str | None, kind: type[int] | type[float], *, option: str) -> Any:
    if text is None or text == NONE:
        return text
    try:
        return kind(text)
    except ValueError:
        raise InvalidInput(f"{option}: {text!r} must be a number, or {NONE}") from None
