"""The pool by itself: every message is answered, and stopping waits for running jobs and for nothing else."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event, Thread
from time import monotonic
from typing import Any, cast

import click
import pytest
from celery.bin.celery import celery as celery_command
from click.testing import CliRunner
from pydantic import SecretStr

import feedq.celery
from feedq.celery import LIBRARIES_OF_OTHERS
from feedq.celery.application import STREAM_POOL, asks_for_prefork, make_app
from feedq.celery.pool import StreamPool
from feedq.celery.tasks import RECONCILE, STREAM_FEED
from feedq.core.model import FeedKey
from feedq.settings import Settings, settings
from feedq.worker.supervisor import Supervisor, TaskCallbacks
from tests.waiting import until

LIMIT_S = 30.0


class Offered:
    """A supervisor that only takes note of what it is offered."""

    def __init__(self) -> None:
        self.offers: list[tuple[FeedKey, TaskCallbacks]] = []
        self.cancelled: list[int] = []
        self.feeds = 0

    def offer(self, key: FeedKey, hooks: TaskCallbacks) -> None:
        self.offers.append((key, hooks))

    def cancel(self, feed_id: int) -> None:
        self.cancelled.append(feed_id)


class Request:
    """Celery's side of one message."""

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.results: list[Any] = []
        self.events: list[str] = []
        self.id, self.rejected = "7", list[bool]()

    def reject(self, requeue: bool = False) -> None:
        self.rejected.append(requeue)

    def on_accepted(self, pid: int, at: float) -> None:
        self.accepted.append(pid)

    def on_success(self, result: Any, **_: Any) -> None:
        self.results.append(result)

    def send_event(self, kind: str, **_: Any) -> None:
        self.events.append(kind)


@pytest.fixture
def pool() -> Iterator[StreamPool]:
    made = StreamPool(10)
    made.start()
    yield made
    made.terminate()


@pytest.fixture
def supervisor(pool: StreamPool) -> Offered:
    made = Offered()
    pool.supervisor = cast("Supervisor", made)
    return made


def stream(pool: StreamPool, request: Request, body: Any, *, content_type: str = "application/json") -> Any:
    return pool.apply_async(
        lambda *_: None,
        args=(STREAM_FEED, "7-3", {}, body, content_type, "utf-8"),
        accept_callback=request.on_accepted,
        callback=request.on_success,
    )


def body(*args: object) -> str:
    return json.dumps([args, {}, {}])


def apply(pool: StreamPool, name: str, function: Callable[[], object]) -> Any:
    return pool.apply_async(
        lambda *_: function(), args=(name,), accept_callback=lambda *_: None, callback=lambda *_: None
    )


def test_a_message_is_acknowledged_when_its_claim_is_and_ends_with_its_stream(
    pool: StreamPool, supervisor: Offered
) -> None:
    request = Request()
    running = stream(pool, request, body(7, 3))
    ((key, hooks),) = supervisor.offers
    assert key == (7, 3)
    assert request.accepted == []
    hooks.accepted()
    until(lambda: request.accepted, "acknowledged")
    assert request.results == []
    running.terminate()
    assert supervisor.cancelled == [7]
    hooks.finished("released")
    until(lambda: request.results, "ended")
    running.terminate()
    assert supervisor.cancelled == [7], "it had ended"


@pytest.mark.parametrize(
    ("text", "content_type"),
    [
        ("no json", "application/json"),
        (body("7", 3), "application/json"),
        (body(7), "application/json"),
        (body(-7, 3), "application/json"),
        (body(7, 2**70), "application/json"),
        (json.dumps({"a": 1}), "application/json"),
        (body(7, 3), "application/x-python-serialize"),
        (b"\xff\xfe", "application/data"),
    ],
)
def test_garbage_is_acknowledged_and_dropped(
    pool: StreamPool, supervisor: Offered, text: Any, content_type: str
) -> None:
    request = Request()
    stream(pool, request, text, content_type=content_type)
    until(lambda: request.accepted and request.results, "answered")
    assert supervisor.offers == []


def test_a_task_that_breaks_out_of_celerys_tracer_is_rejected_for_good(pool: StreamPool) -> None:
    request, fine = Request(), Request()
    for made, target in ((fine, lambda *_: None), (request, lambda *_: 1 / 0)):
        pool.apply_async(target, args=("a.task",), accept_callback=made.on_accepted, callback=made.on_success)
    until(lambda: request.rejected and fine.results, "both have ended")
    assert request.rejected == [False]
    assert fine.rejected == []


def test_a_task_that_waits_is_dropped_when_it_is_terminated_and_one_that_runs_goes_on(
    pool: StreamPool,
) -> None:
    began, go_on, done = list[int](), Event(), list[int]()

    def job(number: int) -> None:
        began.append(number)
        assert go_on.wait(LIMIT_S)
        done.append(number)

    slots = settings().job_slots
    running = [apply(pool, "job", partial(job, number)) for number in range(slots + 2)]
    until(lambda: len(began) == slots, "all slots are taken")
    for number in (0, slots):
        running[number].terminate()
    go_on.set()
    until(lambda: not pool.is_busy, "nothing runs any more")
    assert sorted(done) == [number for number in range(slots + 2) if number != slots]


def test_a_stop_waits_for_running_jobs_and_drops_those_that_wait(pool: StreamPool) -> None:
    began, go_on, done = Event(), Event(), list[int]()

    def job() -> None:
        began.set()
        assert go_on.wait(LIMIT_S)
        done.append(1)

    apply(pool, "job", job)
    assert began.wait(LIMIT_S)
    assert pool.is_busy
    for _ in range(100):
        apply(pool, "job", lambda: go_on.wait(LIMIT_S))
    pool_stops = Event()

    def stop() -> None:
        pool.stop()
        pool_stops.set()

    Thread(target=stop, daemon=True).start()
    assert not pool_stops.wait(0.2)
    go_on.set()
    assert pool_stops.wait(LIMIT_S)
    assert done == [1]
    until(lambda: not pool.is_busy, "nothing runs any more")


def test_a_stop_waits_neither_for_a_reconcile_nor_for_a_callback_that_hangs(pool: StreamPool) -> None:
    began, go_on = Event(), Event()

    def hang() -> None:
        began.set()
        go_on.wait(60)

    apply(pool, RECONCILE, hang)
    pool.call_later(go_on.wait, 60)
    assert began.wait(LIMIT_S)
    before = time.monotonic()
    pool.stop()
    assert time.monotonic() - before < LIMIT_S
    assert not pool.is_busy
    go_on.set()


def test_a_task_that_comes_while_the_pool_closes_stays_with_the_broker(pool: StreamPool) -> None:
    pool.stop()
    accepted: list[int] = []
    for name in (RECONCILE, "job"):
        pool.apply_async(lambda *_: None, args=(name,), accept_callback=lambda pid, _: accepted.append(pid))
    pool.run_control(lambda: accepted.append(0))
    assert accepted == []


SILENT_LIMIT_S = 15.0

WORKER = ["celery", "-A", "feedq", "worker"]


@pytest.mark.parametrize(
    "options",
    [["-P", "prefork"], ["-Pprefork"], ["--pool", "prefork", "-c", "4"], ["-c", "4", "--pool=prefork"]],
)
def test_prefork_is_had_by_naming_it(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert asks_for_prefork([*WORKER, *options])
    monkeypatch.setattr("sys.argv", [*WORKER, *options])
    assert make_app(Settings()).conf.worker_pool == "prefork"


@pytest.mark.parametrize(
    "options", [[], ["-P", "threads"], ["-n", "prefork"], ["-c", "4", "-P"], ["prefork"]]
)
def test_anything_else_leaves_the_stream_pool(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [*WORKER, *options])
    assert make_app(Settings()).conf.worker_pool == STREAM_POOL


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts, as its backlog does, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_nobody_waits_for_a_silent_broker_longer_than_its_time_out(scheme: str, silent: int) -> None:
    app = make_app(Settings(broker_url=SecretStr(f"{scheme}://127.0.0.1:{silent}"), broker_timeout_s=1))
    began = monotonic()
    transport = app.connection_for_write().transport
    with pytest.raises(transport.connection_errors):
        transport.create_channel(transport.establish_connection())
    assert monotonic() - began < SILENT_LIMIT_S


def test_rabbitmq_has_a_time_out_for_each_direction() -> None:
    app = make_app(Settings(broker_url=SecretStr("amqp://host"), broker_timeout_s=7))
    options = app.connection_for_write().transport_options
    assert (options["read_timeout"], options["write_timeout"]) == (7, 7)


ELSEWHERE = {
    *("alembic", "apprise", "fastapi", "flower", "jinja2", "pygments", "rich", "sqlalchemy.orm", "starlette"),
    *("tornado", "opentelemetry.sdk"),
}

"""What commands, pages, the API, alerts, traces and transactional jobs need."""


PROCESSES = "feedq.celery.application, feedq.worker.apart, feedq.worker.monitor"

"""What the processes of a worker begin with."""


def test_a_worker_imports_nothing_of_commands_and_pages() -> None:
    code = f"import json, sys, {PROCESSES}; print(json.dumps(list(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not ELSEWHERE & set(json.loads(answer.stdout))


def test_a_monitor_is_small() -> None:
    code = "import json, sys, feedq.worker.monitor; print(json.dumps(list(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"asyncio", "msgspec", "psycopg2", "pydantic"} & set(json.loads(answer.stdout))


LEFT = """
import celery.__main__, gc, sys, types
sys.argv = ["celery", "-A", "feedq", sys.argv[1], "--help"]
try:
    celery.__main__.main()
finally:
    functions = [one for one in gc.get_objects() if isinstance(one, types.FunctionType)]
    print(*sys.modules, *{str(function.__module__) for function in functions}, file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["worker", "beat"])
def test_a_process_forgets_what_celery_loads_for_other_commands(command: str) -> None:
    argv = [sys.executable, "-c", LEFT, command]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True)
    left = {name.partition(".")[0] for name in ran.stderr.splitlines()[-1].split()}
    assert "celery" in left
    assert not left & LIBRARIES_OF_OTHERS


def test_a_command_of_somebody_else_is_left_as_it_is() -> None:
    tool = click.Group("tool")

    @tool.command()
    def worker() -> None:
        assert feedq.celery.app

    before = dict(celery_command.commands)
    ran = CliRunner().invoke(tool, ["worker"])
    assert (ran.exception, celery_command.commands) == (None, before)
