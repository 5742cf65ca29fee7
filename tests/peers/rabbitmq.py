"""A RabbitMQ from Debian's package, with the daemon that it finds its own ports by."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

import psutil

from feedq.local.process import free_port
from tests.peers.servers import PeerServer

READY_S = 60.0
"""Erlang takes its time, most of all on a machine that has other work."""
# Debian's own command would change the user and the directory.
PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"


class RabbitMq:
    """A broker on loopback that keeps its data in a directory of its own; a context manager."""

    def __init__(self, directory: Path) -> None:
        self._names = PeerServer("epmd", "-port", "{port}", "-address", "127.0.0.1", directory=directory)
        self.port = free_port()
        config = directory / "rabbitmq.conf"
        config.write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\nlog.console.level = warning\n")
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(directory),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._names.port),
            "RABBITMQ_NODENAME": f"feedq{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            # On loopback alone, and without threads that wait by turning.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none"
            ),
        }
        self._server = PeerServer(
            PROGRAM, directory=directory, port=self.port, env=env, patience_s=READY_S, log="rabbitmq.log"
        )

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    @property
    def pid(self) -> int:
        """Of the server itself, which a shell has started."""
        (found,) = (
            child.pid
            for child in psutil.Process(self._server.pid).children()
            if child.name().startswith("beam")
        )
        return found

    def __enter__(self) -> Self:
        self._names.start()
        try:
            self._server.start()
        except BaseException:
            self._names.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Asked in good order it would take ten seconds; its data goes with the directory.
        self._server.kill()
        self._names.stop()
