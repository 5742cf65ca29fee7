"""Looks for fields of records that no column takes, for feeds whose `sink.drift` asks for it.

A field is a member of the record's own object, whatever it holds. A chunk of records without a new field costs a
single call of msgspec, which decodes nothing and stops at the first member that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from feedq.core.json_texts import read_json
from feedq.core.notices import ADDED, FIELD
from feedq.errors import InvalidInput
from feedq.records.batch import Batch
from feedq.sinks.mapping import ColumnType, Drift, type_of

if TYPE_CHECKING:
    from feedq.sinks.base import FeedWrite, Target
    from feedq.sinks.session import SinkSession

FIELDS_MAX: Final = 50
"""Fields of one feed that are told: a source that makes up names for ever is noticed by as many."""
SHOWN_CHARS_MAX: Final = 15
"""Of a name that is not a name for a column, and may have any length."""
SAMPLES_MAX: Final = 100
"""Values of a field that say its type."""
LOOK_AGAIN_S: Final = 10.0
"""How often a table is looked at for columns that somebody has added meanwhile."""
DECODERS_MAX: Final = 1_024
FAULT: Final = "add_columns"
"""The key of the notice why columns are not added."""


class FieldWatch:
    """Remembers the fields of one feed that no column takes. For the writer's threads; `news` from any."""

    def __init__(self) -> None:
        self._found: dict[str, ColumnType | None] = {}
        """None for a field that can have no column."""
        self._news: dict[str, str] = {}
        self._again_at = 0.0

    def look(
        self, batches: Sequence[Batch], taken: frozenset[str], fault: Callable[[str], str | None]
    ) -> None:
        """Look for fields besides those that are ``taken``. ``fault`` says why a field can have no column."""
        samples: dict[str, list[Any]] = {}
        room = FIELDS_MAX - len(self._found)
        for fields in _strangers(batches, taken.union(self._found)) if room > 0 else ():
            for name, value in fields.items():
                if name in samples or len(samples) < room:
                    samples.setdefault(name, []).append(value)
            if len(next(iter(samples.values()))) >= SAMPLES_MAX:
                break
        for name, values in samples.items():
            type_, why = type_of(values), fault(name)
            self._found[name] = None if why else type_
            self._news[FIELD + (_shown(name) if why else name)] = f"{type_}, {why}" if why else type_.value

    def lacking(self, taken: Collection[str]) -> dict[str, ColumnType]:
        """The fields that can be columns, and are none yet."""
        return {name: type_ for name, type_ in self._found.items() if type_ and name not in taken}

    def is_due(self) -> bool:
        """Whether the table should be looked at again."""
        now = monotonic()
        if now < self._again_at:
            return False
        self._again_at = now + LOOK_AGAIN_S
        return True

    def has_come(self, taken: Collection[str]) -> None:
        """Take in what columns the table has by now."""
        for name in [name for name in self._found if name in taken]:
            if (type_ := self._found.pop(name)) is not None:
                self._news[FIELD + name] = type_.value + ADDED

    def tell_fault(self, why: str) -> None:
        """Tell why columns cannot be added."""
        self._news[FAULT] = f"columns cannot be added: {why}"

    def news(self) -> dict[str, str]:
        """Return the notices since the last call."""
        news, self._news = self._news, {}
        return news


def watch_fields(session: SinkSession, target: Target, writes: Sequence[FeedWrite]) -> str | None:
    """Look for fields that no column takes, before the transaction that lands these writes, and add columns where
    that is set. Returns why the target cannot work any more, if it cannot."""
    plan = session.plan(target)
    taken = plan.taken
    watched = [(write, write.watch) for write in writes if write.watch is not None]
    for write, watch in watched:
        watch.has_come(taken)
        watch.look(write.batches, taken, partial(session.column_fault, plan.shape))
    if target.drift is not Drift.ADD:
        return None
    lacking = {name: type_ for _, watch in watched for name, type_ in watch.lacking(taken).items()}
    if not lacking or not any(watch.is_due() for _, watch in watched):
        return None
    if target.adds_columns:
        _add_columns(session, target, lacking, watched[0][1])
    session.refresh([target])
    if wrong := session.get_ready([target]):
        return wrong[target]
    for _, watch in watched:
        watch.has_come(session.plan(target).taken)
    return None


def _add_columns(
    session: SinkSession, target: Target, columns: Mapping[str, ColumnType], watch: FieldWatch
) -> None:
    """Add columns while nothing is locked. What cannot be added is told: the records land without it."""
    try:
        session.add_columns(target, columns)
    except InvalidInput as error:
        watch.tell_fault(str(error))
    except session.errors as error:
        session.rollback()
        if session.is_broken:
            raise
        watch.tell_fault(session.explain(error))


def _shown(name: str) -> str:
    shown = name.replace("\0", "")
    return shown if len(shown) <= SHOWN_CHARS_MAX else shown[:SHOWN_CHARS_MAX] + "…"


def _strangers(batches: Sequence[Batch], known: frozenset[str]) -> Iterator[Mapping[str, Any]]:
    """The fields of each record that are not ``known``, of records that have any."""
    decoder = _decoder(known)
    for batch in batches:
        if decoder is not None and batch.lines is not None and _all_known(decoder, batch.lines):
            continue
        for record in batch.split():
            fields = {name: value for name, value in _members(record).items() if name not in known}
            if fields:
                yield fields


def _all_known(decoder: msgspec.json.Decoder[Any], lines: bytes) -> bool:
    try:
        decoder.decode_lines(lines)
    except (msgspec.DecodeError, RecursionError):
        return False  # or one that is not JSON, which is not for us to say
    return True


@lru_cache(DECODERS_MAX)
def _decoder(known: frozenset[str]) -> msgspec.json.Decoder[Any] | None:
    """What refuses objects with other members; None where msgspec cannot have structs with such names."""
    names = {f"member_{number}": name for number, name in enumerate(sorted(known))}
    try:
        kind = msgspec.defstruct(
            "KnownFields",
            [(name, msgspec.Raw, msgspec.Raw()) for name in names],
            rename=names,
            forbid_unknown_fields=True,
            gc=False,
        )
        return msgspec.json.Decoder(kind)
    except ValueError:
        return None


def _members(record: bytes) -> Mapping[str, Any]:
    try:
        found = read_json(record)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
