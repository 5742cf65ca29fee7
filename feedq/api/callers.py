"""What a caller has to be allowed: each route has one of these arguments, or of `feedq.api.changing`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request

from feedq.api.answers import asked
from feedq.api.arguments import NamePath, require_known_arguments
from feedq.api.authentication import CALLER
from feedq.api.backend import ApiBackend
from feedq.control.store.feeds import no_feed
from feedq.core.model import Feed
from feedq.core.roles import AccessRole, Caller
from feedq.verbs import actions


def _of(request: Request) -> ApiBackend:
    backend: ApiBackend = request.app.state.backend
    return backend


Served = Annotated[ApiBackend, Depends(_of)]
"""An argument of an endpoint: the backend of its application."""


def _may(role: AccessRole, *, everything: bool) -> Callable[[Request], Awaitable[Caller]]:
    async def check(request: Request) -> Caller:
        caller: Caller = request.scope[CALLER]
        caller.require(role)
        if everything:
            caller.require_everything()
        # Only now: who may not ask is refused, and written down, whatever the arguments are.
        require_known_arguments(request)
        return caller

    return check


Viewer = Annotated[Caller, Depends(_may(AccessRole.VIEWER, everything=False))]
Operator = Annotated[Caller, Depends(_may(AccessRole.OPERATOR, everything=False))]
FleetViewer = Annotated[Caller, Depends(_may(AccessRole.VIEWER, everything=True))]
FleetOperator = Annotated[Caller, Depends(_may(AccessRole.OPERATOR, everything=True))]
FleetAdmin = Annotated[Caller, Depends(_may(AccessRole.ADMIN, everything=True))]


def _seen(request: Request, backend: Served, caller: Viewer, name: NamePath) -> Feed:
    """Raises `NotFound`, as for a feed that there is not, when it is another tenant's."""
    feed = backend.store.feeds.get(name)
    if not caller.sees(feed.spec.tenant):
        backend.refusals.write(asked(request.scope), 404)
        raise no_feed(name)
    return feed


SeenFeed = Annotated[Feed, Depends(_seen)]
"""The feed that an address names, even if it is being removed."""


def _seen_live(seen: SeenFeed) -> Feed:
    return actions.live(seen)


LiveFeed = Annotated[Feed, Depends(_seen_live)]


def changed(caller: Caller, feed: Feed) -> None:
    """Raises `Forbidden` when it is another tenant's."""
    caller.require_tenant(feed.spec.tenant, f"feed {feed.name!r}")
