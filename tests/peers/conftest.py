"""Servers get a directory that they can enter."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from feedq.local.process import spawn
from tests.peers.rabbitmq import RabbitMq


@pytest.fixture(scope="session", autouse=True)
def _watcher(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start what ends our children before any test looks at what it has left open: it stays for all of them."""
    directory = tmp_path_factory.mktemp("watcher")
    spawn([sys.executable, "-c", ""], log=directory / "log", env={}, cwd=directory).wait(30)


@contextmanager
def peer_directory() -> Iterator[Path]:
    """A directory for one server. Started by root, many servers become another user, whom pytest's own
    temporary directories keep out."""
    directory = Path(tempfile.mkdtemp(prefix="feedq-peer-"))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def peer_dir() -> Iterator[Path]:
    with peer_directory() as directory:
        yield directory


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    with RabbitMq(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server
