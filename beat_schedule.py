"""What Celery beat sends, besides the schedules that live in the database.

Any number of beats may run: they elect one, and only that one sends (see `feedq.beat`). Add entries of your
own below, in Celery's usual form, for tasks that any worker may run and that may safely be skipped or run
twice:

    "refresh-catalogue": {
        "task": "acme.refresh_catalogue",
        "schedule": crontab(minute=15),        # from celery.schedules import crontab
        "options": {"expires": 600},
    },
"""

from feedq.settings import settings

beat_schedule = {
    # The safety net under NOTIFY, which wakes reconcile within milliseconds of a change.
    "reconcile": {
        "task": "feedq.reconcile",
        "schedule": max(settings().reconcile_interval_s, 0.1),
        # Passes that nobody took would otherwise pile up; only the latest is of any use.
        "options": {"expires": 60, "queue": "feedq.control"},
    },
}
