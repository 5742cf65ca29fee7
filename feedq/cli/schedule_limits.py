"""`feedq schedule queue` and `calendar`: limits of job queues, and days that schedules leave out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from feedq.cli.invocation import Invocation, changes, pass_invocation
from feedq.cli.output import TableColumn, answer, answer_done, answer_list, number
from feedq.cli.tables import QUEUE_COLUMNS
from feedq.errors import InvalidInput
from feedq.report.rows import calendar_row, queue_row
from feedq.schedule.entries import CalendarEntry, QueueEntry, plain_queue
from feedq.schedule.model import Calendar, Queue
from feedq.values import NONE
from feedq.wording import counted, cut

SHOWN_WIDTH = 60
"""Characters of the dates of a calendar in the list; the JSON has all of them."""


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


@click.group(short_help="Days that schedules leave out, such as holidays: set, remove, list.")
def calendar() -> None:
    """Named lists of days that schedules leave out, such as the holidays of a country.

    \b
    Example:
      feedq schedule calendar set holidays-de 01-01 05-01 10-03 12-25 12-26 2027-03-26 2027-03-29
      feedq schedule edit acme/report --exclude-calendar holidays-de
    """


@calendar.command("set")
@click.argument("name")
@click.argument("dates", nargs=-1, required=True)
@changes
def set_calendar(invocation: Invocation, *, name: str, dates: Sequence[str]) -> None:
    """Declare a calendar, or give it other dates. Schedules that leave it out are timed anew.

    DATES are days such as 2026-12-24, days of each year such as 12-25, or ranges such as 2026-12-24..2027-01-02.

    \b
    Example:
      feedq schedule calendar set holidays-de 01-01 05-01 10-03 12-25 12-26
    """
    declared = CalendarEntry.valid({"name": name, "dates": list(dates)})
    timed = invocation.jobs.calendars.set(declared.spec)
    anew = f", {counted(timed, 'schedule')} timed anew" if timed else ""
    answer(invocation, [{"name": name, "result": "set", "schedules": timed}], f"{name} set{anew}")


@calendar.command("remove")
@click.argument("name")
@changes
def remove_calendar(invocation: Invocation, *, name: str) -> None:
    """Forget a calendar. One that a schedule leaves out cannot be removed.

    \b
    Example:
      feedq schedule calendar remove holidays-de
    """
    invocation.jobs.calendars.remove(name)
    answer_done(invocation, [name], "removed")


@calendar.command("list")
@pass_invocation
def list_calendars(invocation: Invocation) -> None:
    """All calendars, with their dates and how many schedules leave them out.

    \b
    Example:
      feedq schedule calendar list
    """
    columns: list[TableColumn[tuple[Calendar, int]]] = [
        TableColumn("CALENDAR", lambda row: row[0].name),
        number("SCHEDULES", lambda row: str(row[1])),
        number("DATES", lambda row: str(len(row[0].dates))),
        TableColumn("DAYS", lambda row: cut(", ".join(row[0].dates), SHOWN_WIDTH)),
    ]
    empty = "no calendars; declare some with `feedq apply` or `feedq schedule calendar set`"
    found = invocation.jobs.calendars.listed()
    answer_list(invocation, found, lambda row: calendar_row(*row), columns, empty=empty)
