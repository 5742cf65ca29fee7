"""Brings feedq into a Celery worker: a bootstep that runs supervisor and jobs, and the node's own queue.

Both exist only in a worker on `feedq.celery.pool.StreamPool`. One on a pool of Celery's own (``-P prefork``, for
example) runs ordinary tasks: it does not register, and is given no feeds and no jobs.

The step belongs to the *worker* blueprint, whose steps live as long as the process; consumer steps are made
anew with each reconnect to the broker. The drain begins in Celery's shutdown signal, not in the step's `stop`,
which comes only after all tasks have ended.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from amqp.exceptions import ResourceLocked
from billiard import current_process
from celery import bootsteps, signals
from celery.exceptions import WorkerShutdown
from celery.worker import state as worker_state
from celery.worker.consumer import Consumer
from celery.worker.control import Panel, nok
from kombu import Queue

from feedq import __version__
from feedq.celery.broker import NODE_PREFIX, guard_pool, guarded, not_carried_out
from feedq.celery.pool import StreamPool
from feedq.celery.tasks import run_reconcile, store
from feedq.control.store.migrate import require_current
from feedq.core.limits import TASK_EVENTS_GATHERED_S
from feedq.core.model import NewWorker, Worker
from feedq.errors import FeedqError, InvalidInput
from feedq.settings import Settings, settings
from feedq.telemetry import traces
from feedq.telemetry.logs import LogEvent, database_event, log
from feedq.telemetry.watched_threads import watch_threads
from feedq.worker import metrics
from feedq.worker.activity import Activity, Limits
from feedq.worker.duty import Duty
from feedq.worker.jobs.calling import TaskCaller, import_jobs
from feedq.worker.jobs.job_service import Jobs
from feedq.worker.monitor import (
    MonitorProcess,
    default_state_dir,
    is_container_init,
    memory_limit,
    report_losses,
    serve_as_init,
)
from feedq.worker.supervisor import Supervisor
from feedq.worker.threads import Deadline, end_with_parent
from feedq.worker.watch import Watch

NAME_BYTES_MAX = 255
"""The longest name of a queue in AMQP."""
NODE_QUEUE_EXPIRES_S = 60
"""A dead node's queue goes with what is in it: its messages are stale, because its leases are freed."""
EVENT_HEARTBEAT_S = 5.0
"""Celery's own heartbeat, an event that Flower and all other workers take in: unless ``--heartbeat-interval`` says
otherwise, not each two seconds. Nothing of feedq goes by it; Flower shows a dead worker as offline after two."""
EVENTS_GATHERED_MAX = 1_000
"""The most events that are gathered; beyond it they are sent at once, by the thread that has one more. Celery
would do so with each 24."""
GIL_SWITCH_S = 0.002
"""How long a thread that has the interpreter may keep the others waiting. Each of ours gives it up for every
message or statement; to wait Python's 5 ms for it each time, behind a loop that is busy, made a cold start of
thousands take minutes."""
GC_THRESHOLDS = (50_000, 20, 100)
"""New objects between two collections, and how many of a generation come before one of the next. What a message or
a batch leaves behind goes without the collector; and with 10,000 feeds a full collection goes through a million
objects, which is a fifth of a second in which nothing is read."""
LEAVE_GRACE_S = 0.35
"""How long after ``drain_timeout_s`` a worker without running jobs may still be there."""
JOBS_QUEUE = "jobs"
"""A worker that is given this queue and no other (``-Q jobs``) runs jobs of schedules and holds no feeds."""
INSISTS_AFTER_S = 1.0
"""A signal that comes again after this is meant; sooner, it is the same one by way of another process."""
WAIT_FIRST_S = 0.5
WAIT_MAX_S = 5.0

logger = log(__name__)


def node_queue(hostname: str) -> str:
    return f"{NODE_PREFIX}{hostname}"


class GuardedConsumer(Consumer):
    """Celery's consumer of tasks, which checks each message before Celery unpacks it. ``worker_consumer``."""

    _has_been_ready = False

    def __init__(self, *args: Any, worker_options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        options = dict(worker_options or {})
        options["heartbeat_interval"] = options.get("heartbeat_interval") or EVENT_HEARTBEAT_S
        super().__init__(*args, worker_options=options, **kwargs)

    def call_soon(self, p: Any, *args: Any, **kwargs: Any) -> Any:
        # What remote control asks for is done by the event loop later, which an exception would end.
        return super().call_soon(guarded(p, not_carried_out), *args, **kwargs)

    def call_soon_ack(self, p: Any, *args: Any, **kwargs: Any) -> Any:
        # So is an acknowledgement; `kombu.message.Message.ack` raises for a message that was dropped meanwhile.
        return super().call_soon_ack(guarded(p, not_carried_out), *args, **kwargs)

    def add_task_queue(
        self, queue: Any, exchange: Any = None, exchange_type: Any = None, routing_key: Any = None, **how: Any
    ) -> None:
        """Consume from one queue more, as remote control asks for. Raises `InvalidInput`, and what kombu does."""
        names = [queue, *(name for name in (exchange, exchange_type, routing_key) if name is not None)]
        if not all(isinstance(name, str) and 0 < len(name.encode()) <= NAME_BYTES_MAX for name in names):
            raise InvalidInput(f"not the names of a queue, its exchange and its key: {names!r}")
        try:
            super().add_task_queue(queue, exchange, exchange_type, routing_key, **how)
        except BaseException:
            # Celery has selected it before it consumes from it. Each new connection would fail as this one does.
            self.app.amqp.queues.deselect(queue)
            raise

    def on_ready(self) -> None:
        super().on_ready()
        self._has_been_ready = True

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        # Celery would try again for ever. RabbitMQ keeps the name for who has it: another worker, unless it is
        # this one's own connection, which was lost and is not given up yet.
        if isinstance(exc, ResourceLocked) and not self._has_been_ready:
            logger.error(LogEvent.NAME_TAKEN, name=self.hostname, error=str(exc))
            raise WorkerShutdown(1)
        super().on_connection_error_after_connected(exc)


class FeedqStep(bootsteps.StartStopStep):
    """Starts the supervisor once the pool is up, and joins it when the worker stops."""

    name = "feedq"
    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        self._supervisor: Supervisor | None = None
        self._jobs: Jobs | None = None
        self._leaving: Deadline | None = None
        self._told_at = inf
        super().__init__(worker, **kwargs)

    def create(self, worker: Any) -> None:
        guard_pool(worker)

    def start(self, worker: Any) -> None:
        if not isinstance(worker.pool, StreamPool):
            logger.info(LogEvent.TASKS_ONLY, pool=type(worker.pool).__module__.rpartition(".")[2])
            return
        s = settings()
        _prepare_process()
        watch_threads()
        # Before the wait: a worker that waits for its database says so there. It ends with the process.
        metrics.serve(s, lambda: worker.pool.supervisor)
        monitor = _monitor(s)
        limits = Limits(s.stall_s, memory_bytes_max(s) if monitor is not None else 0)
        watch = Watch(Activity.private() if monitor is None else monitor.activity, limits)
        self._take_charge(worker, s, watch)
        described = _describe(worker, s)
        supervisor = Supervisor(
            store(),
            s,
            partial(_register, described, s),
            reconcile=lambda: worker.pool.run_control(run_reconcile),
            watch=watch,
        )
        jobs = Jobs(
            store().jobs.runs,
            s,
            session=lambda: supervisor.core.worker_id,
            is_trusted=lambda: supervisor.lease_keeper.trusted,
            call=TaskCaller(worker.app, s.imports),
            count=described.job_slots,
            threads=worker.pool.threads,
        )
        supervisor.jobs = jobs
        if not start_supervisor(supervisor, s):
            return
        if monitor is not None:
            watch.add(Duty("monitor", monitor.keep))
        jobs.start()
        self._supervisor, self._jobs = supervisor, jobs
        worker.pool.supervisor = supervisor
        # Celery sizes the window by -c, which here counts feeds and not messages.
        worker.consumer.initial_prefetch_count = worker.pool.num_processes * worker.prefetch_multiplier
        _gather_events(worker.consumer)

    def _take_charge(self, worker: Any, s: Settings, watch: Watch) -> None:
        """Keep the size of the pool as it is, and the end of the process within its time-out."""
        for command in ("pool_grow", "pool_shrink", "pool_restart", "autoscale"):
            Panel.data[command] = _refuse_new_size
        self._leaving = Deadline(s.drain_timeout_s + LEAVE_GRACE_S, is_busy=lambda: self._is_busy(worker))
        watch.add(Duty("leaving", self._leaving.look))
        watch.start()
        signals.worker_shutting_down.connect(self.drain, weak=False)

    def drain(self, exitcode: int | None = None, how: str | None = None, **_: Any) -> None:
        """Begin to leave. Jobs are waited for, unless a signal comes again, or Celery's word for it (``how``) is
        *Cold*; without one it is not a signal that ends the worker.

        Called in a signal handler: nothing here may take a lock that the interrupted code could hold.
        """
        if self._leaving is not None:
            self._leaving.begin(exitcode or 0)
        insists = how == "Cold" or monotonic() - self._told_at >= INSISTS_AFTER_S
        if how is not None:
            self._told_at = min(self._told_at, monotonic())
        if self._supervisor is not None and self._jobs is not None:
            self._supervisor.drain()
            self._jobs.drain()
            if how is not None and insists:
                self._jobs.force_stop()

    def stop(self, worker: Any) -> None:
        if self._supervisor is not None and self._jobs is not None:
            # Again, for whoever stops without a signal, or was told before there was anything to drain.
            self.drain(exitcode=worker.exitcode)
            self._jobs.join()
            self._supervisor.join()
            self._supervisor = self._jobs = None
            traces.flush()

    def terminate(self, worker: Any) -> None:
        """A cold shutdown: nobody waits for a job."""
        if self._jobs is not None:
            self._jobs.force_stop()
        self.stop(worker)

    def _is_busy(self, worker: Any) -> bool:
        return bool(worker.pool.is_busy) or (self._jobs is not None and self._jobs.is_busy)


@signals.celeryd_init.connect
def _go_on_in_child(**_: Any) -> None:
    """Go on in a child when this is the first process of a container: all others end with the first one at
    once, and the monitor among them could tell nobody how the worker was lost."""
    if is_container_init() and (child := os.fork()):
        os._exit(serve_as_init(child))


def _refuse_new_size(state: Any, **_: Any) -> Any:
    """Answers the commands that change a pool: a worker declares its capacity when it registers."""
    return nok(
        f"{state.hostname} holds as many feeds as -c says, and runs as many jobs as FEEDQ_JOB_SLOTS: restart it "
        "with other values, or start more workers"
    )


@signals.celeryd_init.connect
def _import_jobs(**_: Any) -> None:
    """Import the modules of jobs before anything is connected to: one that is not there ends the worker with
    one sentence."""
    try:
        import_jobs(settings().imports)
    except InvalidInput as error:
        sys.exit(f"feedq: {error}")


@signals.beat_embedded_init.connect
def _end_with_worker(**_: Any) -> None:
    """Runs in the beat of a worker's own (``-B``): it ends with its worker, however that ends.

    The worker stops it by a signal. Where that comes before the beat has a handler of its own, the one that it
    inherited has only noted it here.
    """
    end_with_parent(current_process()._parent_pid)
    if worker_state.should_stop is not None or worker_state.should_terminate is not None:
        sys.exit()


@signals.celeryd_after_setup.connect
def _listen_on_node_queue(sender: str, instance: Any, **_: Any) -> None:
    if not issubclass(instance.pool_cls, StreamPool):
        return
    if instance.autoscale:
        sys.exit(
            "feedq: --autoscale is for Celery's own pools (-P prefork), which run neither feeds nor jobs; say "
            "with -c how many feeds this worker may hold, and start more workers to hold more"
        )
    queue = Queue(node_queue(sender), expires=NODE_QUEUE_EXPIRES_S)
    instance.app.amqp.queues.select_add(queue)


def memory_bytes_max(s: Settings) -> int:
    """Bytes that this process may use; 0 when there is no limit."""
    return s.memory_limit or memory_limit()


def _monitor(s: Settings) -> MonitorProcess | None:
    """The monitor of this process, to be started; and a report of predecessors whose monitors died with them."""
    directory = Path(s.state_dir) if s.state_dir else default_state_dir()
    try:
        monitor = MonitorProcess(directory, Limits(s.stall_s, memory_bytes_max(s)))
    except OSError as error:
        logger.warning(LogEvent.MONITOR_OFF, error=str(error))
        return None
    Thread(target=report_losses, args=(directory, store()), name="feedq-losses", daemon=True).start()
    return monitor


def sleep_in_slices(seconds: float) -> None:
    """Sleep in slices: Celery's signal handler sets a flag and interrupts nothing."""
    until = monotonic() + seconds
    while monotonic() < until and worker_state.should_stop is None:
        sleep(0.1)


def start_supervisor(
    supervisor: Supervisor, s: Settings, *, sleep: Callable[[float], object] = sleep_in_slices
) -> bool:
    """Start as soon as the control database is there, migrated, and lets us; False when told to stop first.

    Raises `InvalidInput`: no waiting helps.
    """
    pause_s = WAIT_FIRST_S
    said: str | None = None
    while worker_state.should_stop is None and worker_state.should_terminate is None:
        try:
            require_current(s.database_url.get_secret_value())
            supervisor.start()
        except InvalidInput:
            raise
        except FeedqError as error:
            if str(error) != said:
                logger.warning(database_event(error), error=str(error), again_in_s=pause_s)
                said = str(error)
        else:
            if said is not None:
                logger.info(LogEvent.DATABASE_BACK)
            return True
        sleep(pause_s)
        pause_s = min(2 * pause_s, WAIT_MAX_S)
    return False


def _gather_events(consumer: Any) -> None:
    """Send Celery's task events a few times a second instead of once a turn of its loop.

    With many messages at once that would be a round trip to the broker for each of them.
    """
    waiting = False

    def flush() -> None:
        nonlocal waiting
        waiting = False
        consumer._flush_events()

    def buffered() -> None:
        # On any thread; timers belong to the loop's.
        nonlocal waiting
        if consumer.hub is not None and not waiting:
            waiting = True
            # Here, because a new connection comes with a new dispatcher.
            consumer.event_dispatcher.buffer_limit = EVENTS_GATHERED_MAX
            consumer.hub.call_soon(consumer.hub.call_later, TASK_EVENTS_GATHERED_S, flush)

    consumer.on_send_event_buffered = buffered


def _prepare_process() -> None:
    """Set up traces, and tune the interpreter for thousands of streams and a handful of threads."""
    traces.set_up()
    sys.setswitchinterval(GIL_SWITCH_S)
    # What has been imported stays: no collection needs to visit it again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    # A descriptor per feed, two with TLS: the usual soft limit is 1,024, the hard one far beyond.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _queues(worker: Any) -> set[str]:
    """Return the queues that the worker was told to consume; its own queue is not named to anybody."""
    return set(worker.app.amqp.queues.consume_from) - {node_queue(worker.hostname)}


def _register(described: NewWorker, s: Settings) -> Worker:
    """Begin a worker session. Raises `Unavailable`."""
    return store().workers.register(replace(described, id=uuid4()), ttl_s=s.ttl_s)


def _describe(worker: Any, s: Settings) -> NewWorker:
    asked = int(worker.concurrency)
    capacity, job_slots = (0, asked) if _queues(worker) == {JOBS_QUEUE} else (asked, s.job_slots)
    return NewWorker(
        id=uuid4(),
        name=worker.hostname,
        queue=node_queue(worker.hostname),
        capacity=capacity,
        job_slots=job_slots,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        labels=s.worker_labels,
        tasks=frozenset(worker.app.tasks),
    )
