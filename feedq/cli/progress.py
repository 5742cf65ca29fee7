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

    def __init__(self, what: str, total: int | None) -> None:
        """Without a ``total`` it counts."""
        self._what, self._total = what, total
        self._started = self._drawn = time.monotonic()
        self._is_shown = False
        self.may_show = sys.stderr.isatty()

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if not self.may_show or now - self._started < SHOWN_AFTER_S or now - self._drawn < EVERY_S:
            return
        self._drawn, self._is_shown = now, True
        click.echo(f"\r\x1b[K{self._line(done, now - self._started)}", err=True, nl=False)

    def _line(self, done: int, passed_s: float) -> str:
        if self._total is None:
            return f"{done:,} {self._what}, {done / max(passed_s, 0.001):,.0f} a second"
        filled = min(WIDTH, WIDTH * done // max(self._total, 1))
        left_s = passed_s * max(0, self._total - done) / max(done, 1)
        bar = "#" * filled + "-" * (WIDTH - filled)
        return f"{bar}  {done:,} of {self._total:,} {self._what}, {left_s:.0f} s left"

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            click.echo("\r\x1b[K", err=True, nl=False)
