"""The acceptance tests run under the roles of `feedq db grants`, each process with its own, as in production.

Their processes are forked, but for those of `test_start` and `test_celery`, which begin as in production, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.nursery import Nursery


@pytest.fixture(scope="package", autouse=True)
def _forked(forking: Nursery) -> None:
    """A worker starts in a tenth of the time."""


@pytest.fixture(scope="package", autouse=True)
def _under_roles() -> Iterator[None]:
    Cluster.roles_by_default = True
    yield
    Cluster.roles_by_default = False
