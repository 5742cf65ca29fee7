"""How the processes of `feedq up` are stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from feedq.local.process import poll_until, tail
from feedq.local.stack import (
    Service,
    stop_all,
)

GENEROUS_S = 30.0


@contextmanager
def service(directory: Path, code: str, *, name: str = "worker1") -> Iterator[Service]:
    argv = ["/bin/sh", "-c", code]
    made = Service(name, argv, directory / f"{name}.log", dict(os.environ), lambda _: True)
    try:
        yield made
    finally:
        stop_all([made], grace_s=0, is_forced=lambda: True)


def test_all_are_asked_to_stop_and_only_the_deaf_are_killed(tmp_path: Path) -> None:
    deaf = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    polite = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"
    with service(tmp_path, deaf, name="deaf") as one, service(tmp_path, polite, name="polite") as other:
        for made in (one, other):
            made.start()
            assert poll_until(lambda: tail(made.log) == "up", timeout_s=GENEROUS_S)  # noqa: B023
        assert stop_all([one, other], grace_s=0.5, is_forced=lambda: False) == ["deaf"]
        assert [s.process.returncode for s in (one, other) if s.process] == [-signal.SIGKILL, 0]
