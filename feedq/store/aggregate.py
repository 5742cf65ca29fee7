"""Classes that read and write a few tables which belong together, each of whose methods is one transaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from feedq.store.database import Database


class Aggregate:
    """Base of these classes."""

    def __init__(self, database: Database) -> None:
        self._database = database


A = TypeVar("A", bound=Aggregate)
P = ParamSpec("P")
R = TypeVar("R")


def in_transaction(method: Callable[Concatenate[A, Connection, P], R]) -> Callable[Concatenate[A, P], R]:
    """Makes each call of a method one transaction, whose connection the method is given first."""

    @wraps(method)
    def call(self: A, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._database.transaction() as c:
            return method(self, c, *args, **kwargs)

    return call


def in_statement(method: Callable[Concatenate[A, Connection, P], R]) -> Callable[Concatenate[A, P], R]:
    """Makes each call of a method one statement, which is a transaction by itself, as `in_transaction` does: it
    costs one round trip instead of three."""

    @wraps(method)
    def call(self: A, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._database.statement() as c:
            return method(self, c, *args, **kwargs)

    return call
