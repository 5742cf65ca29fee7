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
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from feedq.errors import InvalidInput, Unavailable
from feedq.local.process import free_port, is_free, server_account
from feedq.local.server import FileLock, is_locked, make_data_dir, write_private

DEFAULT = Path(".feedq")
PORTS = ("postgres", "valkey", "flower", "source", "api")
"""What has a port, in the order in which ``--port-base`` counts."""


@dataclass(frozen=True, slots=True)
class StackState:
    """What `feedq env` tells of a running stack."""

    pid: int
    settings: Mapping[str, str]
    """``FEEDQ_*`` variables, passwords included."""
    flower_url: str
    """With its login."""


class DataDir:
    """Paths and files of one data directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.logs = self.path / "logs"
        self._lock = FileLock(self.path / "up.lock", what=f"the data directory {self.path}")

    def open(self) -> None:
        """Make it and lock it. Raises `Conflict` when a `feedq up` runs there."""
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInput(f"{self.path} is not a directory: choose another one with --data-dir")
        make_data_dir(self.path, server_account())
        self._lock.acquire()
        self._state.unlink(missing_ok=True)
        self.logs.mkdir(exist_ok=True, mode=0o700)
        # It often lies in somebody's working tree.
        (self.path / ".gitignore").write_text("*\n")

    def close(self) -> None:
        self._state.unlink(missing_ok=True)
        self._lock.release()

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def write_state(self, state: StackState) -> None:
        write_private(self._state, json.dumps(asdict(state)), account=None)

    def read_state(self) -> StackState:
        """The stack that runs here just now. Raises `Unavailable` when there is none, or not yet."""
        if not is_locked(self._lock.path):
            raise Unavailable(
                f"no feedq up runs in {self.path}: start one, or name its directory with --data-dir"
            )
        try:
            return StackState(**json.loads(self._state.read_text()))
        except FileNotFoundError:
            raise Unavailable(
                f"the feedq up in {self.path} is not ready yet; try again in a moment"
            ) from None

    @property
    def _state(self) -> Path:
        return self.path / "stack.json"


class Ports:
    """The port of each thing: counted from a base, or the one of last time, or a free one."""

    def __init__(self, data_dir: DataDir, *, base: int | None) -> None:
        self._file = data_dir.path / "ports.json"
        self._base = base

    def choose(self, what: str) -> int:
        """Raises `InvalidInput` when a port that was asked for is taken."""
        if self._base is not None:
            port = self._base + PORTS.index(what)
            if not is_free(port):
                raise InvalidInput(
                    f"port {port} for {what} is taken: choose another --port-base than {self._base}, "
                    "or leave it out to use free ports"
                )
            return port
        known = self._read()
        port = known.get(what, 0)
        if not (port and is_free(port)):
            port = free_port()
            while port in known.values():
                port = free_port()
            fresh = self._file.with_suffix(".new")
            fresh.write_text(json.dumps({**known, what: port}))
            os.replace(fresh, self._file)
        return port

    def _read(self) -> dict[str, int]:
        try:
            known = json.loads(self._file.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        if not isinstance(known, dict):
            return {}
        return {k: v for k, v in known.items() if k in PORTS and isinstance(v, int) and 0 < v < 65_536}
