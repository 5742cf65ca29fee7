"""`feedq schedule queue`: how many runs of a job queue may start a second, and run at a time."""

from __future__ import annotations

from typing import Any

import click

from feedq import manifest
from feedq.cli.invocation import Invocation, json_option, pass_invocation
from feedq.cli.output import write_json
from feedq.cli.schedule_views import write_queues
from feedq.cli.views import write_done
from feedq.errors import InvalidInput
from feedq.manifest.declared_values import NONE
from feedq.manifest.jobs import read_queue
from feedq.schedule.model import Queue


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
@json_option
@pass_invocation
def set_(
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
    keys = manifest.plain_queue(before) | {key: value for key, value in given.items() if value is not None}
    found = read_queue({key: value for key, value in keys.items() if value != NONE})
    if isinstance(found, list):
        raise InvalidInput(f"queue {name!r}: {'; '.join(what for _, what in found)}")
    queues.set(found)
    write_done(invocation, [name], "set")


@queue.command()
@click.argument("name")
@json_option
@pass_invocation
def remove(invocation: Invocation, *, name: str) -> None:
    """Lift all limits of a queue. Its runs stay.

    \b
    Example:
      feedq schedule queue remove reports
    """
    invocation.jobs.queues.remove(name)
    write_done(invocation, [name], "removed")


@queue.command("list")
@json_option
@pass_invocation
def list_(invocation: Invocation) -> None:
    """The queues that have limits, or runs that wait or run.

    \b
    Example:
      feedq schedule queue list
    """
    queues = {found.name: found for found in invocation.jobs.queues.all()}
    depths = invocation.jobs.queues.depths()
    if not invocation.json:
        write_queues(queues, depths)
        return
    rows = []
    for name in sorted(queues.keys() | depths.keys()):
        limits = queues.get(name, Queue(name))
        waiting, running = depths.get(name, (0, 0))
        rows.append(
            {
                "name": name,
                "rate_per_s": limits.rate_per_s,
                "burst": limits.burst,
                "concurrency": limits.concurrency,
                "waiting": waiting,
                "running": running,
            }
        )
    write_json(rows)


def _number(text: str | None, kind: type[int] | type[float], *, option: str) -> Any:
    if text is None or text == NONE:
        return text
    try:
        return kind(text)
    except ValueError:
        raise InvalidInput(f"{option}: {text!r} must be a number, or {NONE}") from None
