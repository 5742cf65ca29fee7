"""What the API works on: the control database and the settings of the process that serves it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Self

from fastapi import Depends, Request

from feedq.api.refusals import RefusalLog
from feedq.settings import Settings
from feedq.sink_verbs import SinkVerbs
from feedq.sinks.base import Sink, opened_sink
from feedq.store.postgresql import PostgresStore


@dataclass(frozen=True, slots=True)
class ApiBackend:
    """The store and the settings behind one application."""

    store: PostgresStore
    settings: Settings
    refusals: RefusalLog

    @classmethod
    def of(cls, store: PostgresStore, settings: Settings) -> Self:
        return cls(store, settings, RefusalLog(store.tokens))

    def open_sink(self, name: str) -> AbstractContextManager[Sink]:
        return opened_sink(self.settings, name, role="api")

    @property
    def sink_verbs(self) -> SinkVerbs:
        return SinkVerbs(self.store, self.open_sink)


def _of(request: Request) -> ApiBackend:
    backend: ApiBackend = request.app.state.backend
    return backend


Served = Annotated[ApiBackend, Depends(_of)]
"""An argument of an endpoint: the backend of its application."""
