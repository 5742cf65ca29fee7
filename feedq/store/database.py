"""The pool of a process, handing out transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from feedq.store.engine import committing, make_engine, translate_errors


class Database:
    """Transactions on the control database. Thread-safe."""

    def __init__(self, url: str, *, application_name: str) -> None:
        self.url = url
        self._engine = make_engine(url, application_name=application_name)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Commits at the end of the block, rolls back on any exception. Raises `Unavailable`."""
        with translate_errors(self.url), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def statement(self) -> Iterator[Connection]:
        """For one statement, which is a transaction by itself: one round trip instead of three.

        A thread of a busy worker waits for the interpreter after each. Raises `Unavailable`.
        """
        with translate_errors(self.url), self._engine.connect() as connection, committing(connection):
            yield connection

    def close(self) -> None:
        self._engine.dispose()
