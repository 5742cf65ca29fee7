"""Three jobs of a harbour office, one for each semantics; `schedules.yaml` beside this file says when they run.

Workers find them when this directory is on their path and ``FEEDQ_IMPORTS=harbour`` is set. Each is an ordinary
Celery task. What it does about being run twice, or not at all, is the point of the example.
"""

import os
from datetime import timedelta

import httpx
import psycopg2
from celery import shared_task
from sqlalchemy import text

import feedq

REPLY_WITHIN_S = 10.0


@shared_task(name="harbour.announce")
def announce(channel):
    """Tell a channel that a new day begins. At most once: two announcements are worse than none.

    The address of the service is a secret of its own, so it comes from the worker's environment.
    """
    run = feedq.run_context()
    note = {
        "channel": channel,
        "text": f"Berth plan of {run.tick_at:%Y-%m-%d} is out.",
        "id": run.correlation_id,
    }
    answer = httpx.post(os.environ["HARBOUR_WEBHOOK"], json=note, timeout=reply_within(run))
    answer.raise_for_status()


@shared_task(name="harbour.read_gauge")
def read_gauge(url, gauge):
    """Read the water level and keep it. At least once: a second row of the same tick changes nothing."""
    run = feedq.run_context()
    answer = httpx.get(url, timeout=reply_within(run))
    answer.raise_for_status()
    level_m = float(answer.json()["level_m"])
    database = psycopg2.connect(os.environ["HARBOUR_DATABASE_URL"])
    try:
        with database, database.cursor() as cursor:
            cursor.execute(
                "INSERT INTO water_level (gauge, at, level_m) VALUES (%s, %s, %s)"
                " ON CONFLICT (gauge, at) DO NOTHING",
                (gauge, run.tick_at, level_m),
            )
    finally:
        database.close()


@shared_task(name="harbour.count_ships")
def count_ships():
    """Count the positions that landed in the hour before the tick. Transactional: rows and success are one commit.

    The hour is that of the tick and not the one before now: a run that is late, repeated or made up for counts the
    same hour as one on time.
    """
    run = feedq.run_context()
    hour = {"begin": run.tick_at - timedelta(hours=1), "end": run.tick_at}
    run.session.execute(
        text(
            "INSERT INTO ais_hourly (feed, hour, positions)"
            " SELECT feed, :begin, count(*) FROM ais_raw"
            " WHERE received_at >= :begin AND received_at < :end GROUP BY feed"
        ),
        hour,
    )


def reply_within(run):
    """No wait of a job should be longer than its run has left: nobody can stop a thread from outside."""
    return REPLY_WITHIN_S if run.remaining_s is None else min(REPLY_WITHIN_S, run.remaining_s)
