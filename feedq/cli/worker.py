"""`feedq worker`: the fleet's workers with their load, and which of them serve."""

from __future__ import annotations

import click

from feedq import verbs
from feedq.cli.handover import Handover
from feedq.cli.invocation import Invocation, json_option, pass_invocation, wait_options
from feedq.cli.output import write_json
from feedq.cli.views import write_feeds, write_worker, write_workers
from feedq.diagnosis.checks import counted
from feedq.diagnosis.placement_checks import serves
from feedq.model import WorkerView
from feedq.report import feed_row, worker_row
from feedq.wording import printable


@click.group(short_help="List, show, cordon, uncordon and drain workers.")
def worker() -> None:
    """The workers with their load and spread, and which of them may be given feeds.

    \b
    Example:
      feedq worker list
      feedq worker drain celery@host --wait
    """


@worker.command("list")
@click.option("--all", "gone", is_flag=True, help="Also the sessions that have ended.")
@json_option
@pass_invocation
def list_(invocation: Invocation, *, gone: bool) -> None:
    """All workers by name, with what they hold and whether they serve.

    \b
    Example:
      feedq worker list --json
    """
    views = invocation.store.workers.views(gone=gone)
    if invocation.json:
        write_json([worker_row(view) for view in views])
        return
    write_workers(views, now=invocation.clock.now())
    held = [view.leases for view in views if serves(view)]
    if len(held) > 1:
        click.echo(f"spread: {min(held)} to {max(held)} feeds on a worker that serves")


@worker.command()
@click.argument("name")
@json_option
@pass_invocation
def show(invocation: Invocation, *, name: str) -> None:
    """One worker, by its name, the part before the @, its id or the beginning of it, with its feeds.

    \b
    Example:
      feedq worker show celery@host
    """
    view = verbs.find_worker(invocation.store, name)
    held = [
        feed
        for feed in invocation.store.feeds.views(worker=view.worker.name)
        if feed.lease.worker_id == view.worker.id
    ]
    if invocation.json:
        write_json(worker_row(view) | {"held": [feed_row(feed) for feed in held]})
        return
    now = invocation.clock.now()
    write_worker(view, now=now)
    if held:
        click.echo()
        write_feeds(held, now=now)


@worker.command()
@click.argument("name")
@json_option
@pass_invocation
def cordon(invocation: Invocation, *, name: str) -> None:
    """Give a worker no more feeds. It keeps those that it has.

    \b
    Example:
      feedq worker cordon celery@host
    """
    _write_result(invocation, verbs.cordon_worker(invocation.store, name), "cordoned")


@worker.command()
@click.argument("name")
@json_option
@pass_invocation
def uncordon(invocation: Invocation, *, name: str) -> None:
    """Let a worker that was cordoned or drained serve again.

    \b
    Example:
      feedq worker uncordon celery@host
    """
    _write_result(invocation, verbs.uncordon_worker(invocation.store, name), "serving")


@worker.command()
@click.argument("name")
@wait_options
@json_option
@pass_invocation
def drain(invocation: Invocation, *, name: str, wait: bool, timeout_s: float) -> None:
    """Let a worker hand its feeds over, each as soon as another has a place for it, and take no more.

    Feeds that have no other place stay and go on streaming. The process goes on until it is stopped; uncordon
    lets it serve again. With --wait, how far it has got is told on standard error.

    \b
    Example:
      feedq worker drain celery@host --wait --timeout 120
    """
    view = verbs.drain_worker(invocation.store, name)
    if wait:
        handover = Handover(invocation, view)
        invocation.wait_until(
            handover.is_over,
            timeout_s=timeout_s,
            what=f"{view.worker.name} hands over its {counted(view.leases, 'feed')}",
            why=handover.obstacle,
        )
    _write_result(invocation, view, "drained" if wait else "draining")


def _write_result(invocation: Invocation, view: WorkerView, result: str) -> None:
    if invocation.json:
        write_json({"id": view.worker.id, "name": view.worker.name, "result": result})
    else:
        click.echo(f"{printable(view.worker.name)} {result}")
