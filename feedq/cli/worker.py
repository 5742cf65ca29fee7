"""`feedq worker`: the fleet's workers with their load, and which of them serve."""

from __future__ import annotations

import click

from feedq.cli.invocation import Group, Invocation, changes, pass_invocation, wait_options
from feedq.cli.lazily import lazily
from feedq.cli.output import ProgressLine, answer, answer_list, fact_lines, table_lines

with lazily():
    from feedq.cli import tables
    from feedq.verbs import details, wording, workers
    from feedq.verbs.diagnosis import fleet_checks


@click.group(cls=Group, short_help="List, show, cordon, uncordon and drain workers.")
def worker() -> None:
    """The workers with their load and spread, and which of them may be given feeds.

    \b
    Example:
      feedq worker list
      feedq worker drain celery@host --wait
    """


@worker.command("list")
@click.option("--all", "gone", is_flag=True, help="Also the sessions that have ended.")
@pass_invocation
def list_(invocation: Invocation, *, gone: bool) -> None:
    """All workers by name, with what they hold and whether they serve.

    \b
    Example:
      feedq worker list --json
    """
    views = invocation.do(workers.list_workers, gone=gone).items
    answer_list(invocation, views, tables.worker_columns(invocation.clock.now()), empty=tables.NO_WORKERS)
    held = [view.leases for view in views if fleet_checks.serves(view)]
    if len(held) > 1 and not invocation.json:
        click.echo(f"spread: {min(held)} to {max(held)} feeds on a worker that serves")


@worker.command()
@click.argument("name")
@pass_invocation
def show(invocation: Invocation, *, name: str) -> None:
    """One worker with its feeds. NAME is its name, the part before the @, its id, or the first eight or more
    characters of its id.

    \b
    Example:
      feedq worker show celery@host
    """
    found, now = invocation.do(workers.show_worker, name=name), invocation.clock.now()

    held = table_lines(found.held, tables.feed_columns(now))
    answer(invocation, found, fact_lines(details.worker_lines(found.view, now=now)), held)


@worker.command()
@click.argument("name")
@changes
def cordon(invocation: Invocation, *, name: str) -> None:
    """Give a worker no more feeds. It keeps those that it has.

    \b
    Example:
      feedq worker cordon celery@host
    """
    view = invocation.do(workers.act_on_worker, name=name, action=workers.WorkerAction.CORDON)
    answer(invocation, view, f"{view.worker.name} cordoned")


@worker.command()
@click.argument("name")
@changes
def uncordon(invocation: Invocation, *, name: str) -> None:
    """Let a worker that was cordoned or drained serve again.

    \b
    Example:
      feedq worker uncordon celery@host
    """
    view = invocation.do(workers.act_on_worker, name=name, action=workers.WorkerAction.UNCORDON)
    answer(invocation, view, f"{view.worker.name} serving")


@worker.command()
@click.argument("name")
@wait_options()
@changes
def drain(invocation: Invocation, *, name: str, wait: bool, timeout_s: float) -> None:
    """Let a worker hand its feeds over, each as soon as another has a place for it, and take no more.

    Feeds that have no other place stay and go on streaming. The process goes on until it is stopped; uncordon
    lets it serve again.

    \b
    Example:
      feedq worker drain celery@host --wait --timeout 120
    """
    view = invocation.do(workers.act_on_worker, name=name, action=workers.WorkerAction.DRAIN)
    if wait:
        with ProgressLine("feeds handed over", view.leases) as line:

            def is_over() -> bool:
                views = invocation.do(workers.list_workers).items
                # A worker that has left holds nothing.
                left = sum(one.leases for one in views if one.worker.id == view.worker.id)
                line(max(0, view.leases - left))
                return left == 0

            invocation.wait_until(
                is_over,
                timeout_s=timeout_s,
                what=f"{view.worker.name} hands over its {wording.counted(view.leases, 'feed')}",
                why=lambda: "`feedq status` says whether other workers serve and have room",
            )
    answer(invocation, view, f"{view.worker.name} {'drained' if wait else 'draining'}")
