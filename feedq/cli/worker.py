"""`feedq worker`: the fleet's workers with their load, and which of them serve."""

from __future__ import annotations

from contextlib import suppress

import click

from feedq.cli.invocation import Group, Invocation, changes, pass_invocation, wait_options
from feedq.cli.lazily import lazily
from feedq.cli.output import ProgressBar, answer, answer_list, fact_lines, say, table_lines
from feedq.errors import NotFound

with lazily():
    from feedq.cli import tables
    from feedq.core import model
    from feedq.verbs import wording, workers
    from feedq.verbs.diagnosis import placement_checks
    from feedq.verbs.report import details

PATIENCE_S = 3.0
"""Without progress for so long, it is asked what holds it up: a move takes a second or less."""


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
    held = [view.leases for view in views if placement_checks.serves(view)]
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
    lets it serve again. With --wait, how far it has got is told on standard error.

    \b
    Example:
      feedq worker drain celery@host --wait --timeout 120
    """
    view = invocation.do(workers.act_on_worker, name=name, action=workers.WorkerAction.DRAIN)
    if wait:
        with ProgressBar("feeds handed over", view.leases) as bar:
            handover = Handover(invocation, view, bar)
            invocation.wait_until(
                handover.is_over,
                timeout_s=timeout_s,
                what=f"{view.worker.name} hands over its {wording.counted(view.leases, 'feed')}",
                why=handover.obstacle,
            )
    answer(invocation, view, f"{view.worker.name} {'drained' if wait else 'draining'}")


class Handover:
    """Watches a worker hand its feeds over: how far it has got, and what it waits for.

    Each step is told on standard error, not among the results: by the bar where somebody looks, else in lines.
    """

    def __init__(self, invocation: Invocation, view: model.WorkerView, bar: ProgressBar) -> None:
        self._invocation, self._worker, self._bar = invocation, view.worker, bar
        self._left = self._held = view.leases
        self._told = ""
        self._changed_at = invocation.clock.monotonic()

    def is_over(self) -> bool:
        # A worker that has left holds nothing.
        views = self._invocation.do(workers.list_workers).items
        left = sum(view.leases for view in views if view.worker.id == self._worker.id)
        now = self._invocation.clock.monotonic()
        self._bar(max(0, self._held - left))
        if left != self._left:
            self._left, self._changed_at = left, now
            if left and not self._bar.may_show:
                self._tell(f"{wording.counted(left, 'feed')} left")
        elif left and now - self._changed_at >= PATIENCE_S:
            self._changed_at = now
            if (obstacle := self.obstacle()) is not None:
                self._tell(f"{wording.counted(left, 'feed')} left. {obstacle}")
        return left == 0

    def obstacle(self) -> str | None:
        """Says why the handover gets no further; None when nothing is in the way but time."""
        with suppress(NotFound):
            return self._invocation.do(workers.show_worker, name=str(self._worker.id)).obstacle
        return None

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            say(f"{self._worker.name}: {text}", err=True)
