"""The acceptance tests run under the roles of `feedq db grants`, each process with its own, as in production."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster


@pytest.fixture(scope="package", autouse=True)
def _under_roles() -> Iterator[None]:
    Cluster.roles_by_default = True
    yield
    Cluster.roles_by_default = False
