"""Threads that a worker cannot do without: each notes that it gets on.

`WatchedThread` counts the turns of its loop. No wait in a turn is longer than `TURN_S`, except for a server: such
a wait may last as long as the server's time-outs allow, and is marked (`asking`), because a database that is away
is no reason to end a worker; unless the control database says that it is not being asked anything (`asks`).
`feedq.worker.watch` judges all threads in the same way.

`watch_threads` has any thread of feedq noticed that ends by an exception.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

TURN_S = 1.0
"""The longest that a watched thread waits before it turns again. With a longer one, it takes longer to tell a
thread that waits from one that is stuck."""
OURS = "feedq-"
"""How the names of our threads begin; those of others are theirs to see to."""

_watched: set[WatchedThread] = set()
_ended: dict[str, str] = {}


class WatchedThread(Thread):
    """A daemon thread that repeats something for as long as its worker lives."""

    def __init__(self, target: Callable[[], object], *, name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self.turns = 0
        self.is_asking = False
        """Whether it waits for a server, or works on what that has answered."""
        self.backend = 0
        """The process of the control database whose answer it waits for; 0: it waits for another server."""
        self.found_idle = 0
        """How many times in a row that process was found to have nothing to do, although this thread waits."""

    def run(self) -> None:
        _watched.add(self)
        try:
            super().run()
        finally:
            _watched.discard(self)


def watched_threads() -> list[WatchedThread]:
    """The watched threads of this process that run."""
    return list(_watched)


def note_turn() -> None:
    """Note that the calling thread gets on; of no effect on a thread that is not watched."""
    thread = threading.current_thread()
    if isinstance(thread, WatchedThread):
        thread.turns += 1


@contextmanager
def asking() -> Iterator[None]:
    """Inside, the calling thread asks a server, and may wait for as long as that takes."""
    thread = threading.current_thread()
    if not isinstance(thread, WatchedThread):
        yield
        return
    before = thread.is_asking, thread.backend
    thread.is_asking = True
    try:
        yield
    finally:
        thread.is_asking, thread.backend = before
        thread.found_idle = 0
        thread.turns += 1


def asks(backend: int) -> None:
    """Note which process of the control database the calling thread asks."""
    thread = threading.current_thread()
    if isinstance(thread, WatchedThread) and thread.is_asking:
        thread.backend = backend


def watch_threads() -> None:
    """From now on, notice which threads of this process end by an exception: nobody does their work any more."""
    # Only here: commands use the control database, which marks its waits, and load no more than they need.
    from feedq.telemetry.logs import LogEvent, log

    logger, before = log(__name__), threading.excepthook

    def note(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else ""
        if not name.startswith(OURS):
            before(args)
            return
        _ended[name] = args.exc_type.__name__  # its text is for the log: /healthz may be read by anybody
        logger.error(LogEvent.THREAD_ENDED, thread=name, exc_info=args.exc_value)

    threading.excepthook = note


def ended_threads() -> dict[str, str]:
    """The threads that ended by an exception, and by which."""
    return dict(_ended)
