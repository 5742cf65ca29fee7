"""Does verbs for commands: at the control database, or at a server that is asked with the same arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from feedq.verbs.registry import OF, At, Page, Verb, read_declaration, write_declaration

if TYPE_CHECKING:
    from feedq.cli.api_client import ApiConnection

P = ParamSpec("P")
T = TypeVar("T")


class Doer(Protocol):
    """Does a verb with its arguments."""

    def __call__(self, verb: Verb, arguments: msgspec.Struct) -> Any: ...


class Doing:
    """Does verbs, wherever that is done."""

    def __init__(self, doer: Doer) -> None:
        self._doer = doer

    def do(self, function: Callable[Concatenate[At, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a verb. Raises what the verb raises, and `Unavailable` when the server cannot be asked."""
        verb = OF[function]
        found: T = self._doer(verb, verb.arguments(**kwargs))
        return found

    def pages(
        self, function: Callable[Concatenate[At, P], Page[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[T]:
        """All items of a list, page by page."""
        cursor = None
        while True:
            page = self.do(function, *args, **kwargs | {"cursor": cursor})  # type: ignore[arg-type]
            yield from page.items
            if (cursor := page.next) is None:
                return


def at_database(at: At) -> Doer:
    """Does verbs right here."""
    return lambda verb, arguments: verb.call(at, arguments)


def at_server(api: ApiConnection) -> Doer:
    """Has a server do verbs, and reads its answers as the verb's own dataclass."""

    def ask(verb: Verb, arguments: msgspec.Struct) -> Any:
        given = msgspec.to_builtins(arguments, enc_hook=write_declaration)
        path = [
            str(given.pop(part.strip("{}"))) if part.startswith("{") else part
            for part in verb.path.strip("/").split("/")
        ]
        body, query = (given, {}) if verb.changes else ({}, query_of(given))
        text = api.sent(verb.method, path, body, query)
        return msgspec.json.decode(text, type=verb.answer, dec_hook=read_declaration)

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
