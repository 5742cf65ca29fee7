"""feedq's pages in Flower: *Feeds*, *Fleet* and *Schedules*, and a JSON API, under Flower's own login and prefix.

Everything shown is read from the control tables through `feedq.control.store`, never from Flower's memory of
tasks: a restarted Flower knows all of it. Only verbs change anything.

How the pages get into plain ``celery -A feedq flower``, and into nothing else:

Flower has no interface for pages of others. What it has is a table of handlers and a dict of settings
(``flower.urls``), which it reads once, when its command builds the web application. Celery loads the app (``-A``)
before it runs the command. So `feedq.celery.application` calls `feedq.web.site.install` when it is imported, if,
and only if, the subcommand is ``flower``; and that adds the pages to the two tables, and puts a guarded
application in the place of Flower's own. The order of imports does not matter, and a worker or a beat imports
nothing for it.

What was not chosen: a ``flowerconfig.py`` works only in the right working directory; an entry point named
``flower`` in ``celery.commands`` competes with Flower's own, and which one wins depends on the order of
directories; an import hook would act on every process, because Celery's command imports Flower's in each of
them. Flower's tables are no public interface: hence the upper bound in ``pyproject.toml``, and tests against the
real command.

Whoever builds the web application by hand calls `feedq.web.site.install` first, and makes a
`feedq.web.guard.GuardedFlower` instead of a ``flower.app.Flower``.
"""
