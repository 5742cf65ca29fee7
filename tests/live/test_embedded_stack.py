"""When a process of `feedq up` is started again, how all are stopped, and which metrics port each has."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from feedq.local import stack
from feedq.local.datadir import DataDir
from feedq.local.process import poll_until, tail
from feedq.local.stack import (
    LocalStack,
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


def test_what_ends_is_started_again_after_a_pause_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "RESTART_PAUSE_S", 0.1)
    said: list[Mapping[str, str]] = []
    with DataDir(tmp_path / "data").held():
        made = LocalStack(DataDir(tmp_path / "data"), said.append)
        told_to_end = tmp_path / "end"
        ends = f"until [ -e '{told_to_end}' ]; do sleep 0.02; done"
        made.start(made.service("worker1", "/bin/sh", "-c", ends, is_ready=lambda _: True))
        told_to_end.touch()
        try:

            def restarts() -> int:
                made.tend()
                return sum("started again" in document.get("text", "") for document in said)

            assert poll_until(lambda: restarts() == 3, timeout_s=GENEROUS_S, interval_s=0.01)
        finally:
            made.stop()
    seen = [one for one in said if "ended with status 0; starting it again in 0.1 s" in one.get("text", "")]
    assert len(seen) >= 3
