"""Notices: what a worker finds odd about the records or the answers of a feed, told once until the feed is edited.

They are kept beside the feed's lease as texts by a key. The key of a field of the records that no column takes is
its name behind `FIELD`, and the text its type; other texts are sentences. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FIELD: Final = "field:"
ADDED: Final = ", added"
"""After the type of a field that has a column by now. After that of a field that can have none is why."""
NOTICES_MAX: Final = 100
"""Of one feed in one process."""
NOTICE_CHARS_MAX: Final = 500


def new_fields(noticed: Mapping[str, str] | None) -> dict[str, str]:
    """The types of the fields that no column takes, though one could, by their names."""
    return {
        key.removeprefix(FIELD): said
        for key, said in (noticed or {}).items()
        if key.startswith(FIELD) and ", " not in said
    }


def notice_sentences(noticed: Mapping[str, str] | None) -> list[str]:
    """Says each notice, in the order of their keys."""
    return [_sentence(key, said) for key, said in sorted((noticed or {}).items())]


def _sentence(key: str, said: str) -> str:
    if not key.startswith(FIELD):
        return said
    name, (kind, _, why) = key.removeprefix(FIELD), said.partition(", ")
    if said.endswith(ADDED):
        return f"the column {name!r} ({kind}) was added"
    if why:
        return f"no column can take the field {name!r} ({kind}) of the records: {why}"
    return f"no column takes the field {name!r} ({kind}) of the records"
