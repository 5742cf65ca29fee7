"""The ``exec`` connector: what a program of the worker's writes to its standard output, cut into records.

The program is started with the cursor among its arguments or in its environment, and again, with backoff, when
it ends. Only programs that the operator of the worker allows are run, by their absolute paths and without a shell.

It blocks, and has a thread to itself: the kernel ends the program with the thread that started it.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import IO, Annotated, ClassVar

import msgspec
from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors import leash
from feedq.connectors.base import ConnectorOptions, Context, Sockets
from feedq.connectors.reading import StreamOptions
from feedq.connectors.wire.remote import TIMEOUT_S_MAX, check_template
from feedq.core.model import JSON, known_as
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.records.batch import Batch, Records
from feedq.records.template import CURSOR, NAME, Template, compile_template
from feedq.secrets import Masker

TERMINATE_S = 0.5
"""Between SIGTERM and SIGKILL: a feed has to end within a second."""
KILL_S = 5.0
"""A killed process that is still there hangs in the kernel; it is left there."""
READ_BYTES = 256 * 1024
LOOK_S = 0.5
"""How often to look whether the program has ended."""
REST_S = 0.2
"""After the program has ended, what it has started may hold its output for ever: when nothing has come for this
long, nothing does."""
STDERR_BYTES_KEPT = 16 * 1024


class Child:
    """A running program, which is ended together with all it started. To be ended by `end`, also when it has
    ended by itself. Its methods block.

    * Its standard output is a socket and not a pipe, so that the guard can cut it whatever else is stuck.
    * It is in a process group of its own, all of which is ended with it.
    * It inherits no descriptor but its three, and no variable but those it is given.
    * What is kept of its standard error is bounded, and the rest of it is read and dropped.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], guard: Sockets) -> None:
        """Raises OSError when no process can be made, and ValueError for a NUL in what it is given."""
        self._guard = guard
        self._said = bytearray()
        self._said_more = False
        self._status: int | None = None
        self._output, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - no shell; the caller has checked the program
                    [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *argv],
                    bufsize=0,
                    stdin=subprocess.DEVNULL,
                    stdout=theirs.fileno(),
                    stderr=subprocess.PIPE,
                    env=dict(env),
                    cwd="/",
                    start_new_session=True,
                )
        except BaseException:
            self._output.close()
            raise
        assert self._process.stderr is not None
        self._errors: IO[bytes] = self._process.stderr
        os.set_blocking(self._errors.fileno(), False)
        self._poll = select.poll()
        self._poll.register(self._output, select.POLLIN)
        self._poll.register(self._errors, select.POLLIN)
        guard.watch(self._output.fileno())

    def receive(self, *, timeout_s: float) -> bytes | None:
        """What it has written, at least a byte; nothing once it writes no more, or has ended; None if it did
        not in time, of which 0 is for ever.
        """
        give_up_at = time.monotonic() + (timeout_s or inf)
        while True:
            has_ended = self._process.poll() is not None
            if has_ended:
                give_up_at = min(give_up_at, time.monotonic() + REST_S)
            left_s = give_up_at - time.monotonic()
            ready = {fileno for fileno, _ in self._poll.poll(max(0.0, min(left_s, LOOK_S)) * 1000)}
            if self._output.fileno() in ready:
                try:
                    return self._output.recv(READ_BYTES)
                except ConnectionError:
                    return b""  # it ended with something of ours unread, which there is not, or was cut
            if self._errors.fileno() in ready:
                self._hear()
            if left_s <= 0:
                return b"" if has_ended else None

    def end(self, *, after_s: float = 0.0) -> int:
        """Let it end by itself for a while, then end it with all it has started; its exit status.

        May be repeated.
        """
        if self._status is not None:
            return self._status
        # Forgotten first: once closed, the number may be another feed's.
        self._guard.forget(self._output.fileno())
        self._output.close()
        if not self._has_ended(after_s):
            self._signal(signal.SIGTERM)
        if not self._has_ended(TERMINATE_S):
            self._signal(signal.SIGKILL)
        self._has_ended(KILL_S)
        # What it left running: the group exists as long as somebody is in it, and its number is nobody else's yet.
        self._signal(signal.SIGKILL)
        self._hear()
        self._errors.close()
        status = self._process.returncode
        self._status = -signal.SIGKILL if status is None else status
        return self._status

    @property
    def last_words(self) -> str:
        """The end of what it has written to its standard error, in whole lines."""
        said = bytes(self._said)
        if self._said_more:
            _, _, said = said.partition(b"\n")
        return said.decode(errors="replace").strip()

    def _hear(self) -> None:
        data = self._errors.read(READ_BYTES)
        if data == b"":
            with suppress(KeyError):  # heard before
                self._poll.unregister(self._errors)
            return
        self._said += data or b""
        if len(self._said) > STDERR_BYTES_KEPT:
            self._said_more = True
            del self._said[:-STDERR_BYTES_KEPT]

    def _has_ended(self, within_s: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        return self._process.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def program_problem(program: str) -> str | None:
    """Why a program cannot be run here; None if it can."""
    path = Path(program)
    if not path.is_file():
        return "there is no such program on this worker"
    if not os.access(path, os.X_OK):
        return "it may not be executed by the worker"
    return None


EXIT_S = 0.2
"""A program that has closed its output has this long to end by itself, and to say with which status."""
LAST_WORDS_MAX = 500
INHERITED = ("PATH", "LANG", "HOME")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOADER = ("LD_", "DYLD_")


class ExecOptions(StreamOptions):
    """Options of a feed with ``connector: exec``."""

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """The program and its arguments; there is no shell. The program is an absolute path, listed in
    `FEEDQ_EXEC_ALLOW` of the worker. Arguments take `{cursor}`, `{name}` and escapes."""
    first_cursor: str = ""
    """Value of `{cursor}` while the feed has no cursor."""
    env: dict[str, str] = Field({})
    """Environment variables besides the worker's `PATH`, `LANG` and `HOME`. Take placeholders."""
    idle_timeout_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 0.0
    """After this long without output the feed is stalled and the program restarts; 0 disables it."""

    @field_validator("command")
    @classmethod
    def _check_command(cls, command: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not command[0].startswith("/") or command[0].endswith("/"):
            raise ValueError("must begin with the absolute path of a program")
        for argument in command[1:]:
            for name in info.data.get("secrets", {}):
                if f"{{{name}}}" in argument:
                    raise ValueError(
                        f"must not hold a secret ({{{name}}}): command lines can be seen by everybody on the "
                        "worker; pass it in source.env"
                    )
            compile_template(argument)
        return command

    @field_validator("env")
    @classmethod
    def _check_env(cls, env: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        for name, value in env.items():
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} cannot name a variable: use letters, digits and underscores")
            if name.startswith(_LOADER):
                raise ValueError(f"{name} would make the program run other code")
            check_template(value, info)
        return env


class ExecConnector:
    """Reads one run of a feed's program."""

    Options: ClassVar[type[ConnectorOptions]] = ExecOptions

    def __init__(self, options: ExecOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._program = options.command[0]

    def stream(self, cursor: JSON) -> Iterator[Batch]:
        """Batches after ``cursor``, until the program ends: that is always an error, to be started again.

        Raises:
            SourceUnavailable: it cannot be started, or has ended.
            SourceSilent: it has written nothing for the idle timeout.
            FeedMisconfigured: the program is not allowed, or a record is over the limit.
        """
        framer = self._options.stream_framer()
        stream = self._options.record_stream(framer, self._context, where=self._program, cursor=cursor)
        child = self._start(cursor)
        try:
            self._context.on_connected()
            while data := self._receive(child):
                yield from stream.take(data)
            if self._context.stopping.is_set():
                return
            status = child.end(after_s=EXIT_S)
            # It ended well: so does its last record.
            rest = framer.end(self._options.end_mark) if status == 0 and framer.pending else Records()
            yield from stream.batches(rest)
        finally:
            child.end()
        raise self._ended(status, child.last_words)

    def _start(self, cursor: JSON) -> Child:
        if self._program not in self._context.permissions.programs:
            raise FeedMisconfigured(
                f"{self._program}: feeds may not run this program here; the operator of the worker allows it by "
                "its absolute path in FEEDQ_EXEC_ALLOW"
            )
        if problem := program_problem(self._program):
            raise SourceUnavailable(f"{self._program}: {problem}")
        values = self._values(cursor)
        arguments = [_fill(compile_template(argument), values) for argument in self._options.command[1:]]
        secrets = self._context.secrets
        values |= {name: os.fsencode(secret) for name, secret in secrets.items()}
        env = {name: os.environ[name] for name in INHERITED if name in os.environ}
        for name, value in self._options.env.items():
            env[name] = _fill(compile_template(value, secrets=secrets), values)
        try:
            return Child([self._program, *arguments], env=env, guard=self._context.guard)
        except ValueError:
            raise FeedMisconfigured(
                f"{self._program}: a NUL cannot be passed in an argument or variable"
            ) from None
        except OSError as error:
            raise SourceUnavailable(f"{self._program}: cannot be started: {error.strerror}") from error

    def _values(self, cursor: JSON) -> dict[str, bytes]:
        match cursor:
            case None:
                text = self._options.first_cursor.encode()
            case str():
                text = cursor.encode()
            case _:
                text = msgspec.json.encode(cursor)
        return {CURSOR: text, NAME: known_as(self._context.feed).encode()}

    def _receive(self, child: Child) -> bytes:
        idle_timeout_s = self._options.idle_timeout_s
        data = child.receive(timeout_s=idle_timeout_s)
        if data is None:
            raise SourceSilent(
                f"{self._program}: runs, but has written nothing for {idle_timeout_s:g} s (source.idle_timeout_s)"
            )
        return data

    def _ended(self, status: int, last_words: str) -> SourceUnavailable:
        if status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
        else:
            how = "ended (exit status 0)" if status == 0 else f"failed (exit status {status})"
        # Masked before it is cut: half a secret would not be recognised.
        said = Masker(self._context.secrets.values()).mask(last_words)
        if len(said) > LAST_WORDS_MAX:
            said = "…" + said[-LAST_WORDS_MAX:]
        return SourceUnavailable(f"{self._program}: {how}{f': {said}' if said else ''}")


def _fill(template: Template, values: dict[str, bytes]) -> str:
    return os.fsdecode(template.render(values))
