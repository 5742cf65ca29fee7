"""`feedq up`: everything on this machine. `feedq env`: its settings, for other commands."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from threading import Event, Thread
from types import FrameType
from typing import TYPE_CHECKING

import click

from feedq.cli import options
from feedq.cli.fleet import look, screen, summary
from feedq.cli.invocation import STACK_DIR, Invocation
from feedq.cli.output import TableColumn, answer, write_json_line
from feedq.errors import Unavailable

if TYPE_CHECKING:
    from feedq.control.store.postgresql import PostgresStore
    from feedq.core.model import FeedView
    from feedq.local import demo
    from feedq.local.stack import LocalStack

TICK_S = 0.1
LOOK_S, LINE_S = 0.5, 5.0
"""Between two looks at the demo in a terminal, and between two lines about it elsewhere."""
JOIN_TIMEOUT_S = 10.0

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=STACK_DIR,
    help="Where databases, logs and ports are kept. Delete it to start afresh.",
)


@options.command(short_help="Run everything on this machine.")
@click.option("--workers", type=click.IntRange(0, 64), default=3, help="Worker processes.")
@click.option("--beats", type=click.IntRange(0, 16), default=2, help="Beats; one is elected.")
@click.option(
    "--capacity",
    type=click.IntRange(1, 100_000),
    default=500,
    help="Feeds per worker.",
)
@data_dir_option
@click.option(
    "--port-base",
    type=click.IntRange(1024, 65_000),
    help="Port of PostgreSQL; Valkey, Flower, the demo source and the API use the next four. "
    "[default: the ports used last time, or free ones]",
)
@click.option("--demo", "with_demo", is_flag=True, help="Also replay recorded AIS messages as a dozen feeds.")
def up(
    invocation: Invocation, *, data_dir: Path, port_base: int | None, with_demo: bool, **sizes: int
) -> None:
    """Run everything on this machine: PostgreSQL, Valkey, workers, beats, the API and Flower.

    The servers come from feedq[embedded], or else from the system, and listen on 127.0.0.1 only. If
    FEEDQ_DATABASE_URL or FEEDQ_BROKER_URL is set, that server is used instead. Workers take their metrics ports
    from FEEDQ_METRICS_PORT upwards, beats from FEEDQ_BEAT_METRICS_PORT. Processes that die are restarted. Ctrl-C
    drains and stops everything; a second Ctrl-C stops at once. The link to Flower includes its login.

    \b
    Example:
      feedq up --demo
      feedq feed list          # in another terminal, in the same directory
    """
    from feedq.local.datadir import DataDir
    from feedq.local.stack import Interrupted, LocalStack
    from feedq.settings import settings as check_settings

    check_settings()  # what is wrong with them should not take a start to find out
    stack = LocalStack(DataDir(data_dir, port_base=port_base), _reporter(as_json=invocation.json))
    with stack.data_dir.held():
        _count_signals(stack)
        try:
            with closing(stack.start_servers()) as store:
                if with_demo:
                    _start_demo(stack, store)
                services = stack.fleet(store, **sizes)
                stack.start(*services)
                stack.data_dir.write_settings(stack.settings)
                named = f'eval "$(feedq env --data-dir {shlex.quote(str(data_dir))})"; '
                other = "feedq feed list" if data_dir == STACK_DIR else f"{named}feedq feed list"
                stack.say(f"everything is up; next, in another terminal: {other}")
                pages = next(one.address for one in services if one.name == "flower")
                shown = _shown(stack, store, pages, as_json=invocation.json)
                with shown if with_demo else nullcontext():
                    while not stack.stop_requests:
                        stack.tend()
                        time.sleep(TICK_S)
        except Interrupted:
            pass
        finally:
            stack.say("stopping at once" if stack.is_forced() else "stopping")
            in_order = stack.stop()
    stack.say("stopped" if in_order else "stopped, but not everything ended cleanly")
    if stack.is_forced():
        raise SystemExit(1)


@options.command(short_help="Print the settings of the running `feedq up`.")
@data_dir_option
def env(invocation: Invocation, *, data_dir: Path) -> None:
    """Print the settings of the running `feedq up`, passwords included, for a shell to evaluate.

    \b
    Example:
      eval "$(feedq env)"
    """
    from feedq.local.datadir import DataDir

    settings = DataDir(data_dir).settings()
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(settings.items())]
    # Not click.echo, which takes control characters out of what a shell is to have as it is.
    answer(invocation, settings, lambda: sys.stdout.writelines(lines))


def _count_signals(stack: LocalStack) -> None:
    """From here on, Ctrl-C, SIGTERM and a closed terminal are requests to stop, and do not end the process."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stack.stop_requests += 1

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)


def _reporter(*, as_json: bool) -> Callable[[Mapping[str, str]], None]:
    def report(document: Mapping[str, str]) -> None:
        try:
            if as_json:
                write_json_line(document)
            else:
                click.echo(_line(document))
                sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read us has gone; the stack goes on, and Python must not trip over it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return report


def _line(document: Mapping[str, str]) -> str:
    if document["event"] == "said":
        return document["text"]
    note = f"({document['note']})" if document["note"] else ""
    return f"{document['what']:<12}{'  '.join(filter(None, (document['address'], note)))}".rstrip()


# -- the demo ------------------------------------------------------------------------------------------


def _start_demo(stack: LocalStack, store: PostgresStore) -> None:
    """Makes the demo's source, table and feeds, before there are workers to stream them."""
    from feedq.local import demo
    from feedq.local.demo_source import RATES
    from feedq.local.stack import listens_on

    port = stack.data_dir.port("source")
    argv = (sys.executable, "-m", "feedq.local.demo_source", str(port))
    address = f"tcp://127.0.0.1:{port}"
    stack.start(stack.service("source", *argv, is_ready=listens_on(port), address=address))
    demo.declare(store, sink_url=_sink_url(stack), port=port)
    stack.ready("feeds", note=f"{len(RATES)} demo feeds are declared")


def _sink_url(stack: LocalStack) -> str:
    from feedq.settings import DEFAULT_SINK, read_settings

    # The address of our server is newer than the environment that settings come from.
    return read_settings(stack.settings).sink_url(DEFAULT_SINK)


@contextmanager
def _shown(stack: LocalStack, store: PostgresStore, pages: str, *, as_json: bool) -> Iterator[None]:
    """Shows the demo in a thread for the length of the block: a slow database must not keep us from tending."""
    ended = Event()
    shown = Thread(target=_show, args=(stack, store, pages, as_json, ended), name="demo", daemon=True)
    shown.start()
    try:
        yield
    finally:
        ended.set()
        shown.join(JOIN_TIMEOUT_S)


def _show(stack: LocalStack, store: PostgresStore, pages: str, as_json: bool, ended: Event) -> None:
    """Shows what `feedq top` does, with a column of the demo's check, until ``ended``."""
    from feedq.core.selection import Selection
    from feedq.local import demo
    from feedq.settings import read_settings

    invocation, check = Invocation(), demo.LandedCheck(_sink_url(stack))
    invocation.store, invocation.settings = store, read_settings(stack.settings)
    tallies: Mapping[str, demo.Tally] = {}

    def checked(view: FeedView) -> str | None:
        tally = tallies.get(view.feed.name)
        return None if tally is None else str(tally)

    is_live = sys.stdout.isatty() and not as_json
    # The screen hides what was printed before it.
    last = f"Pages: {pages}/feeds   Ctrl-C stops everything"
    shown = screen([TableColumn("CHECK", checked)], last) if is_live else nullcontext()
    with shown as show:
        while not ended.wait(LOOK_S if is_live else LINE_S):
            try:
                frame, tallies = look(invocation, Selection()), check.tallies()
            except Unavailable as error:
                said = str(error)
            else:
                said = f"{summary(frame.fleet)}; check: {demo.total(tallies)}"
                if show is not None:
                    show(frame)
            if show is None:
                stack.say(said)
