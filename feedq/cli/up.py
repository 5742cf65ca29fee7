"""`feedq up`: everything on this machine. `feedq env`: its settings, for other commands."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from feedq.cli.demo_view import Screen, summarize
from feedq.cli.invocation import Invocation, pass_invocation
from feedq.cli.output import answer
from feedq.local import demo, demo_source
from feedq.local.datadir import DEFAULT, DataDir
from feedq.local.demo import Observer
from feedq.local.local_service import answers_tcp
from feedq.local.stack import Interrupted, LocalStack, StackOptions, StopRequests
from feedq.settings import DEFAULT_SINK, Settings
from feedq.settings import settings as check_settings

TICK_S = 0.1

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT,
    show_default=True,
    help="Where the databases, logs and ports are kept. Delete it to begin anew.",
)


@click.command()
@click.option("--workers", type=click.IntRange(0, 64), default=3, show_default=True, help="Worker processes.")
@click.option(
    "--beats", type=click.IntRange(0, 16), default=2, show_default=True, help="Beats; one is elected."
)
@click.option(
    "--capacity",
    type=click.IntRange(1, 100_000),
    default=500,
    show_default=True,
    help="Feeds that each worker may hold.",
)
@data_dir_option
@click.option(
    "--port-base",
    type=click.IntRange(1024, 65_000),
    help="PostgreSQL listens on this port, Valkey, Flower, the demo source and the API on the next four. "
    "Without it: the ports of last time, or free ones.",
)
@click.option(
    "--demo", "with_demo", is_flag=True, help="Also replay AIS messages as a dozen feeds; show them live."
)
@pass_invocation
def up(
    invocation: Invocation,
    *,
    workers: int,
    beats: int,
    capacity: int,
    data_dir: Path,
    port_base: int | None,
    with_demo: bool,
) -> None:
    """Run everything on this machine: PostgreSQL, Valkey, workers, beats, the API and Flower.

    The servers come from the wheels of feedq[embedded], else from the system; they listen on 127.0.0.1 only.
    FEEDQ_DATABASE_URL and FEEDQ_BROKER_URL, where set, take their place; from FEEDQ_METRICS_PORT the workers
    count upwards, from FEEDQ_BEAT_METRICS_PORT the beats. What dies is started again. Ctrl-C
    drains and stops everything, a second one at once; nothing outlives this command, however it ends. The
    link to Flower holds its login. With --json it prints one object a line.

    \b
    Example:
      feedq up --demo
      feedq feed list          # in another terminal, in the same directory
    """
    check_settings()  # what is wrong with them should not take a start to find out
    options = StackOptions(data_dir, workers, beats, capacity, port_base)
    screen = Screen(as_json=invocation.json)
    with _stop_requests() as stops:
        stack = LocalStack(options, screen, stops)
        try:
            stack.start(before_fleet=_prepare_demo if with_demo else None)
            _run(stack, screen, with_demo=with_demo)
        except Interrupted:
            pass
        finally:
            screen.say("stopping" if not stops.forced() else "stopping at once")
            in_order = stack.stop()
    screen.say("stopped" if in_order else "stopped, not everything in order")
    if stops.forced():
        raise SystemExit(1)


@click.command()
@data_dir_option
@pass_invocation
def env(invocation: Invocation, *, data_dir: Path) -> None:
    """Print the settings of the running `feedq up`, passwords included, for a shell to evaluate.

    \b
    Example:
      eval "$(feedq env)"
    """
    settings = DataDir(data_dir).read_state().settings
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(settings.items())]
    # Not click.echo, which takes control characters out of what a shell is to have as it is.
    answer(invocation, settings, lambda: sys.stdout.writelines(lines))


def _run(stack: LocalStack, screen: Screen, *, with_demo: bool) -> None:
    settings = f'eval "$(feedq env{named})"; ' if (named := _named(stack)) else ""
    screen.say(f"everything is up; for other commands here: {settings}feedq feed list")
    if not with_demo:
        _mention_demo_feeds(stack, screen)
        _tend_until_stopped(stack)
        return
    observer = Observer(stack.store, demo.Auditor(_sink_url(stack)))
    observer.start()
    try:
        with screen.live(observer, flower_url=lambda: stack.flower_url) as refresh:
            _tend_until_stopped(stack, refresh)
    finally:
        observer.close()
    screen.say(summarize(observer.latest))


def _tend_until_stopped(stack: LocalStack, refresh: Callable[[], None] = lambda: None) -> None:
    while not stack.stops.requested:
        stack.tend()
        refresh()
        time.sleep(TICK_S)


def _prepare_demo(stack: LocalStack) -> None:
    """Makes the demo's source, table and feeds, before there are workers to stream them."""
    port = stack.ports.choose("source")
    source = demo.source_service(port, logs=stack.data_dir.logs)
    stack.add(source, is_ready=lambda: answers_tcp(port), address=f"tcp://127.0.0.1:{port}")
    demo.declare(stack.store, sink_url=_sink_url(stack), port=port)
    stack.reporter.ready("feeds", note=f"{len(demo_source.RATES)} of the demo are declared")


def _mention_demo_feeds(stack: LocalStack, screen: Screen) -> None:
    orphans = [v for v in stack.store.feeds.views() if demo.is_demo(v.feed)]
    if orphans:
        screen.say(
            f"{len(orphans)} feeds of the demo are declared here and find no source: it runs with --demo only "
            f"(`feedq feed remove` ends them)"
        )


def _sink_url(stack: LocalStack) -> str:
    # The servers' addresses are newer than the environment that settings come from.
    known: Mapping[str, Any] = {"database_url": stack.database_url}
    return Settings(**known).sink_url(DEFAULT_SINK)


def _named(stack: LocalStack) -> str:
    chosen = stack.options.data_dir
    return "" if chosen == DEFAULT else f" --data-dir {shlex.quote(str(chosen))}"


@contextmanager
def _stop_requests() -> Iterator[StopRequests]:
    """Counts Ctrl-C, SIGTERM and a closed terminal, instead of dying of them."""
    stops = StopRequests()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stops.add()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
