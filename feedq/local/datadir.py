"""The data directory of `feedq up`: who uses it, on which ports, and with which settings.

::

    .feedq/
    ├── up.lock       held while `feedq up` runs
    ├── ports.json    ports of last time, taken again when they are free
    ├── stack.json    settings of the running stack, with passwords; its owner alone may read it
    ├── logs/         one log a process, and the one before it
    ├── flower.password
    ├── pg18/, valkey/, *.password, *.lock, valkey.conf     the servers' (feedq.local.server)
    └── servers       when root's directory is closed to the servers' account: where the above are instead
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from feedq.errors import InvalidInput, Unavailable
from feedq.local.process import free_port, is_free, server_account
from feedq.local.server import FileLock, is_locked, make_data_dir, write_private

PORTS = ("postgres", "valkey", "flower", "source", "api")
"""What has a port, in the order in which ``--port-base`` counts."""


class DataDir:
    """Paths and files of one data directory."""

    def __init__(self, path: Path, *, port_base: int | None = None) -> None:
        self.path = path.absolute()
        self.logs = self.path / "logs"
        self._port_base = port_base
        self._lock = FileLock(self.path / "up.lock", what=f"the data directory {self.path}")
        self._settings = self.path / "stack.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make it, and keep others out of it for the length of the block.

        Raises `Conflict` when a `feedq up` runs there.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInput(f"{self.path} is not a directory: choose another one with --data-dir")
        make_data_dir(self.path, server_account())
        self._lock.acquire()
        self._settings.unlink(missing_ok=True)
        self.logs.mkdir(exist_ok=True, mode=0o700)
        # It often lies in somebody's working tree.
        (self.path / ".gitignore").write_text("*\n")
        try:
            yield
        finally:
            self._settings.unlink(missing_ok=True)
            self._lock.release()

    def write_settings(self, settings: Mapping[str, str]) -> None:
        """Keep the ``FEEDQ_*`` variables of the stack, passwords included, while it runs."""
        write_private(self._settings, json.dumps(dict(settings)), account=None)

    def settings(self) -> dict[str, str]:
        """Those of the stack that runs here just now. Raises `Unavailable` when there is none, or not yet."""
        if not is_locked(self._lock.path):
            raise Unavailable(
                f"no feedq up runs in {self.path}: start one, or name its directory with --data-dir"
            )
        try:
            return dict(json.loads(self._settings.read_text()))
        except FileNotFoundError:
            raise Unavailable(
                f"the feedq up in {self.path} is not ready yet; try again in a moment"
            ) from None

    def port(self, what: str) -> int:
        """The port counted from the base, or the one of last time, or a free one.

        Raises `InvalidInput` when a port that was asked for is taken.
        """
        if self._port_base is not None:
            port = self._port_base + PORTS.index(what)
            if not is_free(port):
                raise InvalidInput(
                    f"port {port} for {what} is taken: choose another --port-base than {self._port_base}, "
                    "or leave it out to use free ports"
                )
            return port
        kept = self.path / "ports.json"
        try:
            known = dict(json.loads(kept.read_text()))
            port = int(known.get(what, 0))
        except (FileNotFoundError, ValueError, TypeError):
            known, port = {}, 0
        if not (0 < port < 65_536 and is_free(port)):
            port = free_port()
            while port in known.values():
                port = free_port()
            write_private(kept, json.dumps({**known, what: port}), account=None)
        return port
