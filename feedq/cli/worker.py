"""`feedq worker`: the fleet's workers with their load."""

from __future__ import annotations

import click

from feedq import control
from feedq.cli.invocation import Invocation, json_option, pass_invocation, wait_options
from feedq.cli.output import write_json
from feedq.cli.views import write_feeds, write_worker, write_workers
from feedq.model import WorkerView
from feedq.report import feed_row, worker_row


@click.group(short_help="List, show and drain workers.")
def worker() -> None:
    """The workers with their load and spread.

    \b
    Example:
      feedq worker list
    """


@worker.command("list")
@click.option("--all", "gone", is_flag=True, help="Also the sessions that have ended.")
@json_option
@pass_invocation
def list_(invocation: Invocation, *, gone: bool) -> None:
    """All workers by name, with what they hold.

    \b
    Example:
      feedq worker list --json
    """
    views = invocation.store.workers.views(gone=gone)
    if invocation.json:
        write_json([worker_row(view) for view in views])
        return
    write_workers(views, now=invocation.clock.now())
    held = [view.leases for view in views]
    if len(held) > 1:
        click.echo(f"spread: {min(held)} to {max(held)} feeds a worker")


@worker.command()
@click.argument("name")
@json_option
@pass_invocation
def show(invocation: Invocation, *, name: str) -> None:
    """One worker, by name or by the beginning of its id, with its feeds.

    \b
    Example:
      feedq worker show celery@host
    """
    view = control.find_worker(invocation.store, name)
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
@wait_options
@json_option
@pass_invocation
def drain(invocation: Invocation, *, name: str, wait: bool, timeout_s: float) -> None:
    """Let a worker hand its feeds over and take no more. Its process goes on until it is stopped.

    \b
    Example:
      feedq worker drain celery@host --wait
    """
    view = control.drain_worker(invocation.store, name)
    if wait:
        invocation.wait_until(
            lambda: _held_by(invocation, view) == 0,
            timeout_s=timeout_s,
            what=f"{view.worker.name} hands over its {view.leases} feeds",
        )
    if invocation.json:
        write_json(
            {"id": view.worker.id, "name": view.worker.name, "result": "drained" if wait else "draining"}
        )
    else:
        click.echo(f"{view.worker.name} {'drained' if wait else 'draining'}")


def _held_by(invocation: Invocation, view: WorkerView) -> int:
    """How many leases the worker still has; one that has left has none."""
    return sum(v.leases for v in invocation.store.workers.views() if v.worker.id == view.worker.id)
