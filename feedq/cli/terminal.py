"""Where `feedq up` speaks: lines, JSON lines, or a live view with the news below it."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.live import Live

from feedq.cli.demo_view import render, summarize
from feedq.cli.output import write_json_line
from feedq.embedded.observer import Observer

REFRESH_S = 0.25
SUMMARY_S = 5.0
"""Between two lines of the demo where there is no terminal."""
NEWS_KEPT = 4


class Screen:
    """Where the stack reports to: lines, JSON lines, or a live view with the news below it."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(highlight=False)
        self._news: deque[str] = deque(maxlen=NEWS_KEPT)
        self._is_live = False

    def ready(self, what: str, address: str = "", *, note: str = "") -> None:
        if self._as_json:
            self._write({"event": "ready", "what": what, "address": address, "note": note})
        else:
            self._write(f"{what:<12}{address}{'  ' if address else ''}{f'({note})' if note else ''}".rstrip())

    def say(self, text: str) -> None:
        if self._is_live:
            self._news.append(f"{time.strftime('%H:%M:%S')} {text}")
        elif self._as_json:
            self._write({"event": "said", "text": text})
        else:
            self._write(text)

    @contextmanager
    def live(self, observer: Observer, *, flower_url: Callable[[], str]) -> Iterator[Callable[[], None]]:
        """Show the demo until the block ends; yields what is to be called again and again."""
        if self._as_json or not self._console.is_terminal:
            yield _periodic(lambda: self.say(summarize(observer.latest)), interval_s=SUMMARY_S)
            return
        self._is_live = True
        with Live(console=self._console, auto_refresh=False, transient=False) as live:

            def refresh() -> None:
                view = render(observer.latest, flower_url=flower_url(), news=list(self._news))
                live.update(view, refresh=True)

            try:
                yield _periodic(refresh, interval_s=REFRESH_S)
            finally:
                self._is_live = False

    def _write(self, line: str | dict[str, str]) -> None:
        try:
            if isinstance(line, dict):
                write_json_line(line)
            else:
                click.echo(line)
                sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read us has gone; the stack goes on, and Python must not trip over it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _periodic(action: Callable[[], None], *, interval_s: float) -> Callable[[], None]:
    """``action``, for whoever calls more often than it should happen."""
    due_at = time.monotonic() + interval_s

    def act_if_due() -> None:
        nonlocal due_at
        if time.monotonic() >= due_at:
            due_at = time.monotonic() + interval_s
            action()

    return act_if_due
