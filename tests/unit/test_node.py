"""A node of the tests ends itself, and nobody else."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests import leftovers
from tests.node import Node

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


class Ended:
    """A process that has been waited for: its number is free to be given to another."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int:
        return 0

    def wait(self, timeout: float) -> int:
        return 0


def test_a_signal_to_a_node_that_ended_long_ago_reaches_no_stranger(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEP, start_new_session=True, env={}) as stranger:
        node = Node("worker", [], env={}, cwd=tmp_path, log=tmp_path / "log")
        node._process = Ended(stranger.pid)
        node.end()
        for send in (node.freeze, node.thaw, partial(node.signal, signal.SIGKILL)):
            with pytest.raises(ProcessLookupError):
                send()
        stranger.terminate()
        assert stranger.wait(10) == -signal.SIGTERM


def test_what_a_node_left_behind_in_its_group_ends_with_it(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEP, start_new_session=True) as left:
        node = Node("worker", [], env={}, cwd=tmp_path, log=tmp_path / "log")
        node._process = Ended(left.pid)
        node.end()
        assert left.pid not in {process.pid for process in leftovers.of_this_run()}
