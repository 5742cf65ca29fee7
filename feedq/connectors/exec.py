"""The ``exec`` connector: what a program of the worker's writes to its standard output, cut into records.

The program is started with the cursor among its arguments or in its environment, and again, with backoff, when
it ends. Only programs that the operator of the worker allows are run, by their absolute paths and without a shell.

It blocks, and has a thread to itself: the kernel ends the program with the thread that started it.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Annotated, ClassVar

import orjson
from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.local.child import Child, program_problem
from feedq.connectors.records.cursor import CursorOptions
from feedq.connectors.records.framing import Framed, FramingOptions
from feedq.connectors.wire.remote import TIMEOUT_S_MAX, check_template
from feedq.connectors.wire.template import CURSOR, NAME, Template, compile_template
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.model import JSON, Batch
from feedq.secrets import Masker

EXIT_S = 0.2
"""A program that has closed its output has this long to end by itself, and to say with which status."""
LAST_WORDS_MAX = 500
INHERITED = ("PATH", "LANG", "HOME")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOADER = ("LD_", "DYLD_")


class ExecOptions(CursorOptions, FramingOptions):
    """Options of a feed with ``connector: exec``."""

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    r"""The program, by an absolute path that is in `FEEDQ_EXEC_ALLOW` of the worker, and its arguments; there
    is no shell. In arguments `{cursor}` becomes the cursor (a string as it is, anything else as JSON) and
    `{name}` the feed's name. Escapes: `\n \r \t \0 \\ \xNN`."""
    first_cursor: str = ""
    """What `{cursor}` becomes as long as there is none."""
    env: dict[str, str] = Field({})
    """Environment variables besides `PATH`, `LANG` and `HOME`, which are the worker's. With the placeholders
    of `command`, and `{secret}` for the secret of that name."""
    idle_timeout_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 0.0
    """A program that writes nothing for this long is stalled and started anew; 0 is never."""

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
                raise ValueError(f"{name} would have other code run than that of the program")
            check_template(value, info)
        return env


class ExecConnector:
    """One run of one feed's program."""

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
        framer = self._options.framer()
        reader = self._options.cursor_reader
        child = self._start(cursor)
        try:
            self._context.on_connected()
            while data := self._receive(child):
                framed = framer.push(data)
                if framed:
                    cursor = reader.after(framed, cursor) if reader is not None else cursor
                    yield self._batch(framed, cursor)
                if framed.is_last:
                    raise self._options.refusal(framed, where=self._program, cursor=cursor)
            if self._context.stopping.is_set():
                return
            status = child.end(after_s=EXIT_S)
            if status == 0 and framer.pending and (framed := framer.push(self._options.end_mark)):
                # It ended well: so does its last record.
                cursor = reader.after(framed, cursor) if reader is not None else cursor
                yield self._batch(framed, cursor)
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
                text = orjson.dumps(cursor)
        return {CURSOR: text, NAME: self._context.feed.encode()}

    def _receive(self, child: Child) -> bytes:
        idle_timeout_s = self._options.idle_timeout_s
        data = child.receive(timeout_s=idle_timeout_s or None)
        if data is None:
            raise SourceSilent(
                f"{self._program}: runs, but has written nothing for {idle_timeout_s:g} s (source.idle_timeout_s)"
            )
        return data

    def _batch(self, framed: Framed, cursor: JSON) -> Batch:
        return framed.batch(cursor=cursor, received_at=self._context.clock.now())

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
