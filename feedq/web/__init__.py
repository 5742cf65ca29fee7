"""feedq's pages in Flower: *Feeds*, *Fleet* and *Schedules*, and a JSON API, under Flower's own login and prefix.

Everything shown is read from the control tables through `feedq.control.store`, never from Flower's memory of
tasks: a restarted Flower knows all of it. Only verbs change anything.

How the pages get into plain ``celery -A feedq flower``, and into nothing else:

Flower has no interface for pages of others. What it has is a table of handlers and a dict of settings
(``flower.urls``), which it reads once, when its command builds the web application. Celery loads the app (``-A``)
before it runs the command, inside its own click context, which knows by then which subcommand was asked for. So
`feedq.celery.application` calls `extend_flower` when it is imported, and that adds the pages to the two tables,
and puts a guarded application in the place of Flower's own, if, and only if, the subcommand is ``flower``. No
argument is parsed twice, the order of imports does not matter, and a worker or a beat imports nothing for it.

What was not chosen: a ``flowerconfig.py`` works only in the right working directory; an entry point named
``flower`` in ``celery.commands`` competes with Flower's own, and which one wins depends on the order of
directories; an import hook would act on every process, because Celery's command imports Flower's in each of
them. Flower's tables are no public interface: hence the upper bound in ``pyproject.toml``, and tests against the
real command.

Whoever builds the web application by hand calls `feedq.web.site.install` first, and makes a
`feedq.web.guard.GuardedFlower` instead of a ``flower.app.Flower``.
"""

from __future__ import annotations

import click

FLOWER_COMMAND = "flower"


def extend_flower() -> None:
    """Add the pages if this process is about to run Flower; otherwise do nothing, and import nothing."""
    context = click.get_current_context(silent=True)
    while context is not None and context.invoked_subcommand is None:
        context = context.parent
    if context is None or context.invoked_subcommand != FLOWER_COMMAND:
        return
    from feedq.web.site import install

    install()
