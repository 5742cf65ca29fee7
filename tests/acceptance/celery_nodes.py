"""pytest-celery's components over local processes: the classes are its own, only the containers are not.

`ServerContainer` gives an embedded Valkey the face of a container, `tests.node.Node` does the same for a
worker; both are wrapped by pytest-celery's container classes, which read names and addresses from them.
"""

from __future__ import annotations

from typing import Any

from pytest_celery import CeleryWorkerContainer, RedisContainer

from feedq.local.valkey import Valkey
from tests.node import Node


class ServerContainer:
    """An embedded server with what pytest-celery uses of docker-py's container."""

    def __init__(self, server: Valkey) -> None:
        self.server = server
        self.name = server.kind
        self.id = f"{server.kind}{server.port}"

    @property
    def attrs(self) -> dict[str, Any]:
        return {
            "Config": {"Hostname": "127.0.0.1", "Env": []},
            "HostConfig": {"PortBindings": {}},
            "NetworkSettings": {"Networks": {}, "Ports": {}},
        }

    @property
    def status(self) -> str:
        return "running" if self.server.is_running else "exited"

    def reload(self) -> None:
        """Nothing is cached."""

    def logs(self) -> bytes:
        return self.server.log.read_bytes()


class ValkeyContainer(RedisContainer):
    """pytest-celery's Redis, at the address and with the password of an embedded Valkey."""

    def __init__(self, server: Valkey) -> None:
        super().__init__(ServerContainer(server))
        self._server = server

    @property
    def url(self) -> str:
        return self._server.url()

    @property
    def host_url(self) -> str:
        return self._server.url()

    @property
    def port(self) -> int:
        return self._server.port


class WorkerContainer(CeleryWorkerContainer):
    """pytest-celery's worker, as a local ``celery -A feedq worker``."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.node = node

    def worker_name(self) -> str:
        return self.node.name

    def worker_queue(self) -> str:
        return "feedq"
