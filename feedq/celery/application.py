"""The composition root: the Celery app that ``celery -A feedq`` finds.

Everything is put together here and nowhere else. Settings come from the environment; a mistake in them ends
the process with one sentence.
"""

from __future__ import annotations

import gc

gc.disable()  # until all is imported: what comes now stays, and to look through it again and again takes time

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from celery import Celery, signals
from kombu import Queue

from feedq.celery import broker, running_command
from feedq.celery.bootsteps import FeedqStep
from feedq.celery.once import OnceCelery, prepare
from feedq.celery.tasks import CONTROL_QUEUE, RECONCILE, RECONCILE_EXPIRES_S, STREAM_FEED
from feedq.errors import InvalidInput
from feedq.settings import Settings, settings
from feedq.telemetry.logs import configure_logging

DEFAULT_QUEUE = "feedq"
STREAM_POOL = "feedq.celery.pool:StreamPool"
HEARTBEATS = 2
"""A heartbeat of RabbitMQ takes so many times as long as its answer may."""


def make_app(s: Settings) -> Celery:
    """Makes the app for these settings. Connects to nothing."""
    broker.install()
    app = OnceCelery("feedq", include=["feedq.celery.tasks"])
    app.clock = broker.BoundedClock()
    app.events.dispatcher_cls = broker.BoundedDispatcher
    app.conf.update(
        _broker_options(s),
        # Celery itself accepts JSON and nothing else, keeps time in UTC and has no result backend.
        task_ignore_result=True,
        task_default_queue=DEFAULT_QUEUE,
        task_queues=(Queue(DEFAULT_QUEUE), Queue(CONTROL_QUEUE)),
        task_routes={RECONCILE: {"queue": CONTROL_QUEUE}},
        task_acks_late=True,
        task_publish_retry_policy={"max_retries": 2, "interval_start": 0.05, "interval_step": 0.2},
        worker_consumer="feedq.celery.bootsteps:GuardedConsumer",
        worker_pool="prefork" if asks_for_prefork(sys.argv) else STREAM_POOL,
        worker_prefetch_multiplier=1,
        # Streams are acknowledged and still active: counted as unacknowledged, they would shrink the window
        # to one message after a reconnect.
        worker_enable_prefetch_count_reduction=False,
        worker_send_task_events=True,  # Flower's pages
        worker_redirect_stdouts=False,  # log lines are JSON, and what a task prints is not
        beat_scheduler="feedq.celery.beat:ElectedScheduler",
        beat_schedule=_beat_schedule(s),
    )
    # Remote control counts by itself.
    app.control.mailbox.clock = broker.BoundedClock()
    app.steps["worker"].add(FeedqStep)
    return app


def asks_for_prefork(argv: Sequence[str]) -> bool:
    """Whether a command line names the prefork pool.

    Celery itself cannot tell that from its default, and lets the configuration have its way in both cases (``if
    value == 'prefork' and worker_pool`` in `celery.bin.worker.WorkersPool`).
    """
    pairs = zip(argv, [*argv[1:], ""], strict=True)
    return any(
        (option in ("-P", "--pool") and value == "prefork") or option in ("-Pprefork", "--pool=prefork")
        for option, value in pairs
    )


def _broker_options(s: Settings) -> dict[str, Any]:
    return {
        "broker_url": s.broker_url.get_secret_value(),
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_connection_timeout": s.broker_timeout_s,
        "broker_transport_options": _transport_options(s),
        # RabbitMQ: a consumer that hears nothing for two of these connects anew.
        "broker_heartbeat": round(HEARTBEATS * s.broker_timeout_s),
        # RabbitMQ closes a channel for one message, such as one that waits longer than its consumer_timeout.
        "broker_channel_error_retry": True,
    }


def _transport_options(s: Settings) -> dict[str, Any]:
    url = s.broker_url.get_secret_value()
    bounded = broker.bounded_options(url, s.broker_timeout_s)
    if not broker.is_redis(url):
        return bounded
    return bounded | {
        "visibility_timeout": s.visibility_timeout_s,
        # A thousand acks at once take more than kombu's default of ten.
        "max_connections": 64,
        "health_check_interval": 10,
    }


def _beat_schedule(s: Settings) -> dict[str, Any]:
    """``beat_schedule.py`` of the working directory, if there is one; the reconcile tick in any case."""
    entries: dict[str, Any] = {
        "reconcile": {
            "task": RECONCILE,
            "schedule": max(s.reconcile_interval_s, 0.1),
            "options": {"queue": CONTROL_QUEUE, "expires": RECONCILE_EXPIRES_S},
        }
    }
    try:
        own = importlib.import_module("beat_schedule")
    except ModuleNotFoundError as error:
        if error.name != "beat_schedule":
            raise
        return entries
    return prepare(entries | dict(own.beat_schedule))


@signals.setup_logging.connect
def _setup_logging(**_: Any) -> None:
    configure_logging(settings(), quiet_tasks=(STREAM_FEED, RECONCILE))


def _app_or_exit() -> Celery:
    try:
        return make_app(settings())
    except InvalidInput as error:
        sys.exit(f"feedq: {error}")


app = _app_or_exit()
app.set_default()
if running_command() == "flower":
    from feedq.web.site import install

    install()
gc.enable()
