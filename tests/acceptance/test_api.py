"""`feedq api` as a process, in its role of PostgreSQL."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedq.control.store.grants import Role
from feedq.control.store.postgresql import PostgresStore
from feedq.core.roles import AccessRole
from tests.cluster import FEEDQ, ROOT, Cluster, wait_until
from tests.node import Node


class Served:
    """The process, and who asks it."""

    def __init__(self, cluster: Cluster, *options: str, **env: str) -> None:
        self.node = Node(
            "api",
            [str(FEEDQ), "api", "--port=0", *options],
            env={**cluster.env, **cluster.as_role(Role.OPERATOR, env)},
            cwd=ROOT,
            log=cluster.directory / "api.log",
        )
        self.node.start()
        wait_until(self._url, lambda: f"the API listens:\n{self.node.text()}")
        self.url = self._url()

    def _url(self) -> str:
        assert self.node.is_running(), self.node.text()
        found = re.search(r"the API is at (\S+);", self.node.text())
        return found[1] if found else ""

    def get(self, path: str, token: str = "") -> tuple[int, Any]:
        request = urllib.request.Request(self.url + path)
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@pytest.fixture
def cluster(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[Cluster]:
    with Cluster(tmp_path, database_url=database_url, broker_url=broker_url) as made:
        yield made


def test_the_process_answers_in_its_role_and_ends_when_it_is_told(cluster: Cluster) -> None:
    store = PostgresStore(cluster.database_url)
    token = store.tokens.add("ada", AccessRole.VIEWER, tenant=None, lasts_s=600)
    store.close()
    served = Served(cluster)
    assert served.get("/feeds")[0] == 401
    assert served.get("/feeds", token) == (200, {"items": [], "next": None})
    assert served.get("/status", token)[0] == 200
    served.node.signal(signal.SIGTERM)
    assert served.node.wait(10) == 0
    assert "Traceback" not in served.node.text()


def test_it_listens_elsewhere_only_when_told_and_says_what_is_in_the_way(cluster: Cluster) -> None:
    served = Served(cluster)
    assert served.url.startswith("http://127.0.0.1:")
    port = served.url.split(":")[2].split("/")[0]
    failed = cluster.run("api", "--port", port)
    assert failed.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in failed.stderr
    served.node.end()
