"""Servers for the tests: one embedded PostgreSQL and one Valkey for the session, emptied for each test."""

from __future__ import annotations

import gc
import inspect
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import settings

from feedq.control.store import database
from feedq.local.postgres import Postgres
from feedq.local.process import tail
from feedq.local.valkey import Valkey
from feedq.testing.loopback import run_on
from tests import leftovers
from tests.cluster import Cluster, Place
from tests.embedded import postgres_server
from tests.fakes.control import ControlDatabase
from tests.nursery import Nursery

# No deadline: how long an example takes says more about the machine's other work than about the code.
settings.register_profile("feedq", deadline=None, max_examples=25, print_blob=True)
# `make thorough`: what nobody waits for at each change.
settings.register_profile("thorough", settings.get_profile("feedq"), max_examples=250)
settings.load_profile("feedq")

MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 5 * 2**30
"""Four runs of tests at once, each with a gigabyte of PostgreSQL's log at most."""
LEAVE_S = 5.0
"""A monitor reports the end of its worker before it ends itself."""
_ended = pytest.StashKey[list[str]]()
_postgres = pytest.StashKey[Postgres]()


def pytest_configure(config: pytest.Config) -> None:
    # A command that a test runs in its own process may be kept waiting for seconds, by all the others.
    database.IDLE_IN_TRANSACTION_TIMEOUT_MS = 60_000
    config.stash[_ended] = leftovers.end(leftovers.of_ended_runs())
    leftovers.mark()


def pytest_unconfigure(config: pytest.Config) -> None:
    for left in config.stash.get(_ended, []):
        print(f"left over by a run of tests that was cut off, and ended: {left}", file=sys.stderr)
    for left in leftovers.end(leftovers.gone_within(LEAVE_S)):
        print(f"left over by these tests, and ended: {left}", file=sys.stderr)


def pytest_collection_finish() -> None:
    # All modules and thousands of tests are there to stay: no collection of garbage needs to look at them again.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A coroutine test runs on a new event loop and leaves nothing behind.

    The loop is of the kind that workers use, unless a fixture named ``new_event_loop`` says otherwise.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    new_event_loop: Any = pyfuncitem.funcargs.get("new_event_loop", uvloop.new_event_loop)
    run_on(new_event_loop, pyfuncitem.obj(**wanted))
    return True


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    """A new event loop of the kind that workers use."""
    return partial(run_on, uvloop.new_event_loop)


@pytest.fixture(scope="session")
def servers_dir() -> Iterator[Path]:
    """A directory that the servers' account can enter, which pytest's own temporary ones are not.

    In memory where there is much of it: to make the files of a database takes half a second on some disks. What a
    run that was cut off has left there is removed.
    """
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN
    for old in MEMORY.glob("feedq-tests-*-*"):
        if leftovers.is_over(old.name.split("-")[2]):
            shutil.rmtree(old, ignore_errors=True)
    prefix = f"feedq-tests-{os.getpid()}-"
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=MEMORY if has_room else None))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(servers_dir: Path, request: pytest.FixtureRequest) -> Iterator[Postgres]:
    with postgres_server(servers_dir) as server:
        request.session.stash[_postgres] = server
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With a failure stands what the database said last: that a session was killed, its client cannot know."""
    report = yield
    if report.failed and (server := item.session.stash.get(_postgres, None)) is not None:
        report.sections.append(("PostgreSQL's log", tail(server.log, lines=40)))
    return report


@pytest.fixture(scope="session")
def control_of_fleets(postgres: Postgres) -> Iterator[ControlDatabase]:
    """The control database of all fleets that are ticked by hand, one after the other."""
    made = ControlDatabase(postgres.create_database("fleets"))
    yield made
    made.close()
    postgres.drop_database("fleets")


@pytest.fixture
def control(control_of_fleets: ControlDatabase) -> Iterator[ControlDatabase]:
    """The fleets of this test are on it."""
    with control_of_fleets.driven():
        yield control_of_fleets


@pytest.fixture(scope="session")
def valkey(servers_dir: Path) -> Iterator[Valkey]:
    server = Valkey(servers_dir)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def place(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    postgres: Postgres,
    valkey: Valkey,
) -> Iterator[Place]:
    """Of the cluster that the tests of a module share."""
    client = valkey.client()
    client.flushall()
    client.close()
    name = request.path.stem
    yield Place(tmp_path_factory.mktemp(name), postgres.create_database(name), valkey.url())
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Clusters fork their processes from one that has imported what they need."""
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        Cluster.nursery_by_default = nursery
        yield nursery
        Cluster.nursery_by_default = None


@pytest.fixture
def database_url(postgres: Postgres) -> Iterator[str]:
    """A new, empty database."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
def broker_url(valkey: Valkey) -> str:
    """An emptied broker of its own: clusters that share one take each other's messages."""
    client = valkey.client(database=3)
    client.flushdb()
    client.close()
    return valkey.url(database=3)
