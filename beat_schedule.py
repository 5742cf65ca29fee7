"""What Celery beat sends, besides the schedules that live in the database.

Any number of beats may run: they elect one, and only that one sends (see `feedq.celery.beat`). It sends
`feedq.reconcile` every ``FEEDQ_RECONCILE_INTERVAL_S`` without an entry here. Add entries of your own below, in
Celery's usual form, for tasks that any worker may run and that may safely be skipped or run twice:

    "refresh-catalogue": {
        "task": "acme.refresh_catalogue",
        "schedule": crontab(minute=15),        # from celery.schedules import crontab
        "options": {"expires": 600},
    },

An entry that is to run once per tick on the whole cluster says so. No message is sent then: each tick becomes a
run in the database, under a key that every beat gives it, and a worker claims it. So it is not doubled by
several beats, by plain ones (`celery -A feedq beat -S celery.beat.PersistentScheduler`) whose clocks differ,
nor by a broker:

    "close-the-books": {
        "task": "acme.close_the_books",        # in a module that workers import: FEEDQ_IMPORTS=acme
        "schedule": crontab(hour=4, minute=30),
        "options": {"feedq_once": True},
    },

It takes intervals and crontabs, and `feedq schedule` shows it as `beat:close-the-books`. A run is at most once:
one whose worker dies under way is lost; and ticks in which no beat lives are skipped. A schedule that is declared
needs no beat and has all else, retries, catch-up and time zones among it: see docs/howto/schedule-jobs.md.
"""

from typing import Any

beat_schedule: dict[str, Any] = {}
