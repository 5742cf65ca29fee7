"""`feedq schedule calendar`: named lists of days that schedules leave out."""

from __future__ import annotations

from collections.abc import Sequence

import click

from feedq import manifest
from feedq.cli.invocation import Invocation, json_option, pass_invocation
from feedq.cli.output import write_json, write_table
from feedq.cli.views import write_done
from feedq.diagnosis.checks import counted
from feedq.errors import InvalidInput
from feedq.wording import printable

SHOWN_WIDTH = 60
"""Characters of the dates of a calendar in the list; the JSON has all of them."""


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
@json_option
@pass_invocation
def set_(invocation: Invocation, *, name: str, dates: Sequence[str]) -> None:
    """Declare a calendar, or give it other dates. Schedules that leave it out are timed anew.

    DATES are days such as 2026-12-24, days of each year such as 12-25, or ranges such as 2026-12-24..2027-01-02.

    \b
    Example:
      feedq schedule calendar set holidays-de 01-01 05-01 10-03 12-25 12-26
    """
    found = manifest.read_calendar({"name": name, "dates": list(dates)})
    if isinstance(found, list):
        raise InvalidInput(f"calendar {name!r}: {'; '.join(what for _, what in found)}")
    timed = invocation.jobs.calendars.set(found)
    if invocation.json:
        write_json([{"name": name, "result": "set", "schedules": timed}])
    else:
        click.echo(printable(f"{name} set" + (f", {counted(timed, 'schedule')} timed anew" if timed else "")))


@calendar.command()
@click.argument("name")
@json_option
@pass_invocation
def remove(invocation: Invocation, *, name: str) -> None:
    """Forget a calendar. One that a schedule leaves out cannot be removed.

    \b
    Example:
      feedq schedule calendar remove holidays-de
    """
    invocation.jobs.calendars.remove(name)
    write_done(invocation, [name], "removed")


@calendar.command("list")
@json_option
@pass_invocation
def list_(invocation: Invocation) -> None:
    """All calendars, with their dates and how many schedules leave them out.

    \b
    Example:
      feedq schedule calendar list
    """
    calendars, users = invocation.jobs.calendars.all(), invocation.jobs.calendars.users()
    if invocation.json:
        write_json(
            [manifest.plain_calendar(one) | {"schedules": users.get(one.name, 0)} for one in calendars]
        )
        return
    if not calendars:
        click.echo("no calendars; declare some with `feedq apply` or `feedq schedule calendar set`")
        return
    rows = [
        (printable(one.name), str(users.get(one.name, 0)), str(len(one.dates)), _shown(one.dates))
        for one in calendars
    ]
    write_table(("CALENDAR", "SCHEDULES", "DATES", "DAYS"), rows, right="SCHEDULES DATES")


def _shown(dates: Sequence[str]) -> str:
    text = ", ".join(dates)
    return text if len(text) <= SHOWN_WIDTH else text[: SHOWN_WIDTH - 1] + "…"
