"""What the pages of one Flower ask: verbs, for whoever is logged in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import Struct

from feedq.api.calls import Calls
from feedq.api.endpoint import Endpoint
from feedq.control.store.postgresql import PostgresStore
from feedq.core.roles import Caller
from feedq.settings import Settings
from feedq.verbs.registry import OF, At, Verb, encode
from feedq.web.feed_reader import Reader

P = ParamSpec("P")
T = TypeVar("T")


class WebQueries:
    """Asks verbs for one Flower."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        url = settings.database_url.get_secret_value()
        self.store = PostgresStore(url, application_name="feedq-web")
        self.endpoint = Endpoint.of(self.store, settings)
        self._reader = Reader(url)
        self.calls = Calls()

    def at(self, caller: Caller) -> At:
        """Where verbs act for a caller."""
        return replace(self.endpoint.at, caller=caller)

    def forget(self) -> None:
        """Something may have been changed: whoever did it sees so on the next page."""
        self._reader.forget()

    async def ask(
        self, at: At, function: Callable[Concatenate[At, P], T], *args: P.args, **arguments: P.kwargs
    ) -> T:
        """Returns what a verb answers, which may be a little old: all who may see the same share it.

        Raises `Unavailable`, and what the verb raises.
        """
        assert not args, "verbs take arguments by name"
        made: Any = OF[function].arguments
        answer: T = await self.answer(at, OF[function], made(**arguments))
        return answer

    async def answer(self, at: At, verb: Verb, asked: Struct) -> Any:
        """The same for arguments that were read from an address."""
        question = (verb.name, at.caller.role, at.caller.tenant, encode(asked))
        return await self._reader.read(question, partial(verb.call, at, asked))
