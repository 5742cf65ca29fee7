"""Does verbs for commands: at the control database, or at a server that is asked with the same arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import msgspec

from feedq.verbs.registry import OF, PAGE_MAX, At, Page, Told, Verb, write_declaration

if TYPE_CHECKING:
    from feedq.cli.api_client import ApiConnection

P = ParamSpec("P")
T = TypeVar("T")

PROGRESS: Final = "progress"
ANSWER: Final = "answer"


class Doer(Protocol):
    """Does a verb with its arguments; ``told`` hears how far it has come, if somebody wants to know."""

    def __call__(self, verb: Verb, arguments: msgspec.Struct, told: Told | None) -> Any: ...


@dataclass(slots=True)
class Doing:
    """Does verbs, wherever that is done."""

    doer: Doer
    told: Told | None = None

    def do(self, function: Callable[Concatenate[At, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a verb. Raises what the verb raises, and `Unavailable` when the server cannot be asked."""
        verb = OF[function]
        found: T = self.doer(verb, verb.parse(kwargs), self.told)
        return found

    def pages(
        self,
        most: int | None,
        function: Callable[Concatenate[At, P], Page[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Iterator[T]:
        """The first so many items of a list, or all of them, page by page. Raises as `do`."""
        verb, cursor, left = OF[function], None, most
        while left is None or left > 0:
            limit = PAGE_MAX if left is None else min(left, PAGE_MAX)
            asked = verb.parse({**kwargs, "limit": limit, "cursor": cursor})
            page = self.doer(verb, asked, None)
            yield from page.items
            if (cursor := page.next) is None:
                return
            left = None if left is None else left - len(page.items)


def at_database(at: Callable[[Told | None], At]) -> Doer:
    """Does verbs right here."""
    return lambda verb, arguments, told: verb.call(at(told), arguments)


def at_server(api: ApiConnection) -> Doer:
    """Has a server do verbs, and reads its answers as the verb's own dataclass."""

    def ask(verb: Verb, arguments: msgspec.Struct, told: Told | None) -> Any:
        given = msgspec.to_builtins(arguments, enc_hook=write_declaration)
        path = [
            str(given.pop(part.strip("{}"))) if part.startswith("{") else part
            for part in verb.path.strip("/").split("/")
        ]
        asked: dict[str, Any] = {"json": given} if verb.changes else {"params": query_of(given)}
        if verb.is_stream:
            return (msgspec.json.decode(data) for _, data in api.events(verb.method, path, **asked))
        if told is None:
            return api.read(api.ask(verb.method, path, **asked), verb.answer)
        for kind, data in api.events(verb.method, path, **asked):
            if kind == PROGRESS:
                found = msgspec.json.decode(data)
                told(found["done"], found["total"])
            elif kind == ANSWER:
                return api.read(data, verb.answer)
        raise api.broken_off()

    return ask


def query_of(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments as a query string has them: without what is not given; a selection's keys beside the others."""
    flat = {**given, **given.get("select", {})}
    flat.pop("select", None)
    found: dict[str, Any] = {}
    for name, value in flat.items():
        if value is None or value == [] or value == {}:
            continue
        if isinstance(value, dict):
            value = [f"{key}={one}" for key, one in value.items()]
        found[name] = str(value).lower() if isinstance(value, bool) else value
    return found
