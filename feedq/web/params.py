"""What the address of a page asks for: the arguments of the verb that answers with the same, and its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from feedq.api.endpoint import arguments_in
from feedq.verbs.registry import Verb


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
    wanted = {**msgspec.to_builtins(arguments), "cursor": None, **msgspec.to_builtins(changes)}
    defaults = msgspec.to_builtins(type(arguments)(**usual))
    return "?" + urlencode(flat({k: v for k, v in wanted.items() if v != defaults[k]}), doseq=True)


def flat(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Plain arguments as a query string has them: a selection's keys stand beside the others.

    Pages always show feeds that are being removed, and verbs leave them alone.
    """
    found: dict[str, Any] = {}
    for name, value in {**arguments, **(arguments.get("select") or {})}.items():
        if name in ("select", "removing") or not value:
            continue
        if isinstance(value, dict):
            value = [f"{key}={one}" for key, one in value.items()]
        found[name] = "true" if value is True else value
    return found
