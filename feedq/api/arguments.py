"""Refuses arguments of an address that its endpoint does not know: a filter spelled wrong would list all."""

from __future__ import annotations

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from feedq.errors import InvalidInput
from feedq.values import did_you_mean, shown_path


def require_known_arguments(request: Request) -> None:
    """Raises `InvalidInput`, naming the one that is not known and what may have been meant."""
    route = request.scope["route"]
    if not isinstance(route, APIRoute):
        return
    known = sorted(_arguments(route.dependant))
    for name in request.query_params:
        if name not in known:
            hint = did_you_mean(name, known) or f"; known are: {', '.join(known) or 'none'}"
            raise InvalidInput(f"unknown argument {shown_path(name)!r}{hint}")


def _arguments(dependant: Dependant) -> set[str]:
    found = {field.alias for field in dependant.query_params}
    return found.union(*map(_arguments, dependant.dependencies))
