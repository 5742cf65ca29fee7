"""What the pages of one Flower ask: verbs, for whoever is logged in.

Many browsers ask the same, so a question is read once, however many ask it. Its answer is kept for `KEPT_S`, or
for ten times as long as it took, so that all browsers together cost the database a tenth of one connection per
question. `WebQueries.forget` drops what was read before: whoever changed something sees so on the next page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct, to_builtins

from feedq.api.calls import Calls
from feedq.api.endpoint import Endpoint, arguments_in
from feedq.control.store.postgresql import PostgresStore
from feedq.core.roles import Caller
from feedq.settings import Settings
from feedq.verbs.registry import At, Verb, encode, query_of

T = TypeVar("T")

READ_TIMEOUT_S = 10.0
"""Longer than the driver's own time-out for a connection, whose message says more."""
KEPT_S = 1.0
KEPT_TIMES = 10.0
ANSWERS_MAX = 64
"""Answers kept at a time; each may hold a page of feeds."""


class WebQueries:
    """Asks verbs for one Flower. To be used from one event loop."""

    def __init__(self, settings: Settings) -> None:
        url = settings.database_url.get_secret_value()
        self.store = PostgresStore(url, application_name="feedq-web")
        self.endpoint = Endpoint.of(self.store, settings)
        self.calls = Calls()
        self.reads = Calls(timeout_s=READ_TIMEOUT_S)
        self._known: dict[Hashable, asyncio.Future[Any]] = {}
        """Answers that are kept, and those still to come, by their questions."""

    def at(self, caller: Caller) -> At:
        """Where verbs act for a caller."""
        return replace(self.endpoint.at, caller=caller)

    def forget(self) -> None:
        """Forget all answers; a read under way still answers those who wait for it, and nobody else."""
        self._known.clear()

    async def answer(self, at: At, verb: Verb, asked: Struct) -> Any:
        """Returns what a verb answers, which may be a little old: all who may see the same share it.

        Raises `Unavailable`, and what the verb raises.
        """
        question = (verb.name, at.caller.role, at.caller.tenant, encode(asked))
        return await self.read(question, partial(verb.call, at, asked))

    async def read(self, question: Hashable, job: Callable[[], T]) -> T:
        """Returns what ``job`` finds, or has found lately for the same question. Raises as `Calls.call`."""
        known = self._known.get(question) or self._begin(question, job)
        # Shielded: whoever gives up waiting does not take the answer from the others.
        answer: T = await asyncio.shield(known)
        return answer

    def _begin(self, question: Hashable, job: Callable[[], Any]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        begun = self._known[question] = asyncio.ensure_future(self.reads.call(job))
        if len(self._known) > ANSWERS_MAX:
            del self._known[next(iter(self._known))]

        def forget() -> None:
            if self._known.get(question) is begun:
                del self._known[question]

        def keep(_: asyncio.Future[Any]) -> None:
            failed = begun.cancelled() or begun.exception() is not None
            kept_s = 0.0 if failed else max(KEPT_S, KEPT_TIMES * (loop.time() - began))
            if kept_s:
                loop.call_later(kept_s, forget)
            else:
                forget()

        begun.add_done_callback(keep)
        return begun


# -- addresses -----------------------------------------------------------------------------------------


def arguments_of(verb: Verb, query: str, usual: Mapping[str, Any], *, own: Collection[str]) -> Any:
    """The arguments of a verb that an address asks for, with what is ``usual`` where it says nothing.

    A form sends its empty fields, too. ``own`` are arguments of the page. Raises `InvalidInput`.
    """
    given = [(name, text) for name, text in parse_qsl(query) if text and name not in own]
    return verb.parse({**usual, **arguments_in(verb, urlencode(given))})


def address_of(arguments: Any, usual: Mapping[str, Any], **changes: Any) -> str:
    """The end of an address that asks for these arguments with ``changes``; what is as usual is left out.

    Whatever else than the page changes begins at the first page.
    """
    wanted = {**to_builtins(arguments), "cursor": None, **to_builtins(changes)}
    defaults = to_builtins(type(arguments)(**usual))
    return "?" + urlencode(query_of({k: v for k, v in wanted.items() if v != defaults[k]}), doseq=True)
