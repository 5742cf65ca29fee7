"""Workers, beats and commands that start in a tenth of the time: forked from a process that has imported all.

Tests that start and end hundreds of processes would spend most of the machine on imports. `Nursery` is one process
that imports what a worker and the command line do, all but the app itself, whose settings come from the
environment. It forks a child for each node, which goes on in Celery's own ``main`` as ``python -m celery`` does,
and for each command, which goes on in that of ``feedq``. From then on it is a process like any other: in a group
of its own, killed and frozen by its own id, and gone when the tests are.

`tests.cluster.Cluster` starts its processes this way where the fixture `forking` says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from threading import RLock
from typing import Any

from tests.node import INHERITED, Node

IMPORTED = (
    *(
        "celery.__main__",
        "celery.bin.celery",
        "celery.apps.worker",
        "celery.apps.beat",
        "celery.worker.consumer",
    ),
    *(
        "kombu.transport.redis",
        "psycopg2.extras",
        "sqlalchemy.dialects.postgresql.psycopg2",
        "uvloop",
    ),
    *(
        "feedq.cli",
        "feedq.celery.bootsteps",
        "feedq.celery.beat",
        "feedq.web",
        "feedq.control.store.postgresql",
    ),
)
ROOT = Path(__file__).resolve().parent.parent
READY_S = 60.0
FORK_S = 20.0
PR_SET_PDEATHSIG = 1
MAINS = {"celery": "celery.__main__", "feedq": "feedq.cli"}


class Child:
    """A forked process, with as much of `subprocess.Popen` as `Node` uses."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        """Somebody else's as soon as the process has ended: the nursery waits for it at once."""
        self.status: int | None = None
        """Once it has ended; when it was killed, the signal's number, negative."""

    def poll(self) -> int | None:
        self._nursery.hear()
        return self.status

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() >= end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.005)
        return status


class Nursery:
    """The process that forks; a context manager. Thread-safe."""

    def __init__(self, directory: Path, *, imports: Sequence[str] = ()) -> None:
        """``imports`` are modules that its children need beside those of all others."""
        self._children: dict[int, Child] = {}
        """Those that have not ended, by their process ids."""
        self._directory = directory
        self._imports = imports
        self._log = directory / "nursery.log"
        self._born: list[Child] = []
        """Those that nobody has been given yet."""
        self._buffer = b""
        self._lock = RLock()
        """Held from an order until its process is there, and while what it says is taken in."""

    def __enter__(self) -> Nursery:
        env = {name: os.environ[name] for name in INHERITED if name in os.environ}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.nursery", *self._imports],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                cwd=ROOT,
                bufsize=0,
            )
        self._expect(1, READY_S)
        self._born.clear()
        return self

    def __exit__(self, *_: object) -> None:
        # Its children die with it.
        self._process.kill()
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def node(self, name: str, argv: Sequence[str], **options: Any) -> Node:
        """A node of ``python -m celery``, to be started."""
        return ForkedNode(self, name, argv, **options)

    def run(
        self, arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """A feedq command from its beginning to its end."""
        with tempfile.TemporaryDirectory(dir=self._directory) as directory:
            output, errors = Path(directory, "output"), Path(directory, "errors")
            child = self.fork("feedq", arguments, env=env, cwd=cwd, output=output, errors=errors)
            try:
                status = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                raise
            return subprocess.CompletedProcess(
                ["feedq", *arguments], status, output.read_text(), errors.read_text()
            )

    def fork(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        output: Path,
        errors: Path,
    ) -> Child:
        files = {"output": str(output), "errors": str(errors)}
        order = {"argv": [program, *arguments], "env": dict(env), "cwd": str(cwd), **files}
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._expect(1, FORK_S)
            return self._born.pop()

    def hear(self, timeout_s: float = 0.0) -> None:
        """Take in what it has said by now."""
        output = self._process.stdout
        assert output is not None
        with self._lock:
            while select.select([output], [], [], timeout_s)[0]:
                data = os.read(output.fileno(), 65_536)
                assert data, f"the nursery ended:\n{self._log.read_text()[-2000:]}"
                *lines, self._buffer = (self._buffer + data).split(b"\n")
                for line in lines:
                    said = json.loads(line)
                    if "ended" in said:
                        self._children.pop(said["ended"]).status = said["status"]
                    else:
                        child = self._children[said["pid"]] = Child(self, said["pid"])
                        self._born.append(child)
                timeout_s = 0.0

    def _expect(self, children: int, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while len(self._born) < children:
            assert time.monotonic() < end, f"the nursery is silent:\n{self._log.read_text()[-2000:]}"
            self.hear(0.1)


class ForkedNode(Node):
    """A node whose process comes from a nursery."""

    def __init__(self, nursery: Nursery, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._nursery = nursery

    def start(self) -> None:
        assert self._process is None or self._process.poll() is not None, f"{self.name} runs already"
        # Without `python -m celery`.
        self._process = self._nursery.fork(
            "celery", self.argv[3:], env=self.env, cwd=self.cwd, output=self.log, errors=self.log
        )
        self._frozen = False


# -- in the process itself ---------------------------------------------------------------------------


def serve() -> None:
    """Fork a child for each order, and say when one has ended, until the orders end."""
    for module in (*IMPORTED, *sys.argv[1:]):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _say(pid=os.getpid())
    buffer = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        _reap()
        if 0 in ready:
            data = os.read(0, 65_536)
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                _fork(json.loads(line))


def _say(**what: int) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            _say(ended=found[0], status=os.waitstatus_to_exitcode(found[1]))


def _fork(order: Mapping[str, Any]) -> None:
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        _say(pid=pid)
        return
    status = 1
    try:
        _become(order)
        sys.exit(importlib.import_module(MAINS[sys.argv[0]]).main())
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _become(order: Mapping[str, Any]) -> None:
    """The process that was ordered, from its group to its arguments."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A shell that runs the tests in the background has everything below it ignore this one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for target, name in ((1, order["output"]), (2, order["errors"])):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), target)
    os.closerange(3, 64)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.argv = list(order["argv"])
    # As the interpreter does with these when it starts.
    sys.path[:0] = [path for path in order["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    if "PYTHONFAULTHANDLER" in order["env"]:
        faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, TextIOWrapper)
        stream.reconfigure(line_buffering=True)


if __name__ == "__main__":
    serve()
