"""One stage for all chaos tests, healed before each and set anew after a failure; and what they measured.

Tests of the stage come first, so that it is set once; the others have the machine without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.control.store.postgresql import PostgresStore
from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from tests.chaos import effects, storm
from tests.cluster import Cluster
from tests.nursery import Nursery
from tests.stage import Stage, staged

LOG_TAIL = 3_000
HERE = Path(__file__).parent
_failed = pytest.StashKey[bool]()
_figures = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.parent == HERE and "stage" not in getattr(item, "fixturenames", ()))


class Stages:
    """Keeps the stage until a test fails on it: what it leaves behind must not fail the next one too."""

    def __init__(self, directory: Path, postgres: Postgres, valkey: Valkey) -> None:
        self._directory = directory
        self._postgres = postgres
        self._valkey = valkey
        self._numbers = itertools.count(1)
        self._open = ExitStack()
        self._stage: Stage | None = None

    def get(self) -> Stage:
        if self._stage is None:
            number = next(self._numbers)
            directory = self._directory / f"stage{number}"
            directory.mkdir()
            self._stage = self._open.enter_context(
                staged(directory, postgres=self._postgres, valkey=self._valkey, database=f"stage{number}")
            )
        return self._stage

    def discard(self) -> None:
        self._stage = None
        self._open.close()


@pytest.fixture(scope="package")
def stages(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, valkey: Valkey) -> Iterator[Stages]:
    stages = Stages(tmp_path_factory.mktemp("chaos"), postgres, valkey)
    yield stages
    stages.discard()


@pytest.fixture(autouse=True)
def _undisturbed(stages: Stages, request: pytest.FixtureRequest) -> None:
    """The stage takes part of the machine: it is cleared once a test needs none."""
    if "stage" not in request.fixturenames:
        stages.discard()


@pytest.fixture
def stage(stages: Stages, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """60 feeds that stream on 3 workers under 2 beats."""
    current = stages.get()
    try:
        current.heal()
    except AssertionError:
        stages.discard()
        current = stages.get()
    yield current
    if request.node.stash.get(_failed, False):
        _show_logs(current.cluster)
        stages.discard()


def _show_logs(cluster: Cluster) -> None:
    for node in (*cluster.workers.values(), *cluster.beats.values()):
        print(f"--- end of {node.log}\n{node.text()[-LOG_TAIL:]}")


@pytest.fixture(scope="package", autouse=True)
def _forked(forking: Nursery) -> None:
    """A worker starts in a tenth of the time."""


@pytest.fixture
def fleet(
    tmp_path: Path,
    database_url: str,
    broker_url: str,
    request: pytest.FixtureRequest,
) -> Iterator[Cluster]:
    """A cluster without nodes yet, whose workers know the jobs of `effects` and are soon declared gone."""
    env = {**storm.SETTINGS, "FEEDQ_IMPORTS": storm.IMPORTED}
    with Cluster(tmp_path, database_url=database_url, broker_url=broker_url, env=env) as made:
        made.sql(effects.TABLE)
        yield made
        if request.node.stash.get(_failed, False):
            _show_logs(made)


@pytest.fixture
def schedules(fleet: Cluster) -> Iterator[ScheduleStore]:
    store = PostgresStore(fleet.database_url)
    yield store.jobs.schedules
    store.close()


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Records a figure for the summary at the end."""
    figures = request.config.stash.setdefault(_figures, [])

    def add(what: str, figure: object) -> None:
        figures.append(f"{what}: {figure:.3f} s" if isinstance(figure, float) else f"{what}: {figure}")

    return add


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = config.stash.get(_figures, [])
    if figures:
        terminalreporter.section("measured under faults")
        for figure in figures:
            terminalreporter.line(figure)
