"""A bar on standard error for what takes more than a second, where somebody looks."""

from __future__ import annotations

import sys
import time
from types import TracebackType

import click

SHOWN_AFTER_S = 1.0
EVERY_S = 0.1
WIDTH = 30


class ProgressBar:
    """Call it with how many are done; it shows itself after a second, on a terminal only. A context: it clears its
    line at the end."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._started = self._drawn = time.monotonic()
        self._is_shown = False
        self._may_show = sys.stderr.isatty()

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if not self._may_show or now - self._started < SHOWN_AFTER_S or now - self._drawn < EVERY_S:
            return
        self._drawn, self._is_shown = now, True
        filled = WIDTH * done // max(self._total, 1)
        left_s = (now - self._started) * (self._total - done) / max(done, 1)
        bar = "#" * filled + "-" * (WIDTH - filled)
        line = f"{bar}  {done:,} of {self._total:,} {self._what}, {left_s:.0f} s left"
        click.echo(f"\r\x1b[K{line}", err=True, nl=False)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            click.echo("\r\x1b[K", err=True, nl=False)
