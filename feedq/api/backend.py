"""What the API works on: the control database and the settings of the process that serves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from feedq.settings import Settings
from feedq.store.postgresql import PostgresStore


@dataclass(frozen=True, slots=True)
class ApiBackend:
    """The store and the settings behind one application."""

    store: PostgresStore
    settings: Settings


def _of(request: Request) -> ApiBackend:
    backend: ApiBackend = request.app.state.backend
    return backend


Served = Annotated[ApiBackend, Depends(_of)]
"""An argument of an endpoint: the backend of its application."""
