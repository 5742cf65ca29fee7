"""What a catalog is: something that is read as a whole, and gives entries and a version.

Settings name each catalog and give its kind and options; other packages add kinds by the entry point group
``feedq.catalogs``. A kind only fetches. What is common stands here: options and bounds, versions of those that
have none, and how a row or a text becomes feeds. A kind raises `CatalogUnavailable` when it cannot read all of
its catalog, and then nothing is changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from functools import cache, singledispatch
from operator import methodcaller
from time import monotonic
from typing import Annotated, Any, ClassVar, Final, Protocol
from uuid import UUID

import orjson
from pydantic import BeforeValidator, Field

from feedq.connectors.base import installed, load_installed, valid_options
from feedq.core.values import StrictModel
from feedq.errors import CatalogUnavailable, InvalidInput, NotFound
from feedq.settings import Settings
from feedq.verbs import documents
from feedq.verbs.documents import DocumentError
from feedq.verbs.manifest.reader import ENTRIES_MAX

ENTRY_POINT_GROUP: Final = "feedq.catalogs"
BYTES_MAX: Final = 64 * 2**20
"""A larger answer, file or result is no list of feeds: it would be held in memory several times over."""
JSON_KEYS: Final = frozenset(("source", "sink", "labels", "selector"))
"""Keys whose text is JSON."""
NESTED_MAX: Final = 8
"""Dots in the name of a column."""


def from_text(given: Any) -> Any:
    """Settings give an option of a catalog as text."""
    try:
        return orjson.loads(given) if isinstance(given, str) else given
    except orjson.JSONDecodeError:
        raise ValueError("must be JSON") from None


Mapped = Annotated[dict[str, Any], BeforeValidator(from_text)]
"""An option that is a JSON object."""


class CatalogOptions(StrictModel):
    """Base of the options of every catalog: unknown ones are refused by name."""

    defaults: Mapped = Field({})
    """What an entry says unless it says otherwise, such as `{"connector": "tcp", "sink": {"table": "t"}}`.
    Mappings are merged."""
    removals_max: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the feeds of this catalog that one sync may remove; ten of them are always allowed, and all of
    them never."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Longest time for connecting, and for reading all of it."""


@dataclass(frozen=True, slots=True)
class CatalogContent:
    """What a kind of catalog found."""

    items: Iterable[tuple[str, Any]]
    """What there is, each with where it is, such as ``row 12``. Bytes are a manifest. A mapping is a feed: dots in
    its keys lead below, and what is None is not said; or it has one key, with all of the feed as JSON."""
    version: str | None = None
    """Differs from the one of any other content; None has the items compared."""


class FeedCatalog(Protocol):
    """Fetches one catalog. Made anew for each sync."""

    Options: ClassVar[type[CatalogOptions]]

    def __init__(self, options: Any, settings: Settings) -> None: ...

    def read(self, known: str | None) -> CatalogContent | None:
        """Everything that the catalog has, or None when that is still the version ``known``.

        Raises:
            CatalogUnavailable: it cannot be read now, or not as it is set up; also while items are taken.
        """


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One feed as the catalog has it."""

    where: str
    """Such as ``feeds.yaml:12``, for messages."""
    value: Any
    """As in a manifest, before ``defaults``."""


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    """An entry that was not synced, and why; without a name if it has none."""

    where: str
    name: str | None
    what: str

    def __str__(self) -> str:
        who = "" if self.name is None else f"feed {self.name!r}: "
        return f"{self.where}: {who}{self.what}"


@dataclass(slots=True)
class CatalogReading:
    """All that a catalog has."""

    version: str = ""
    entries: list[CatalogEntry] = field(default_factory=list)
    problems: list[SkippedEntry] = field(default_factory=list)
    """What could not be read as entries."""


@dataclass(frozen=True, slots=True)
class OpenCatalog:
    """A catalog of the settings, ready to be read."""

    name: str
    catalog: FeedCatalog
    options: CatalogOptions
    setup: str
    """Differs when kind or options do; secrets do not count."""

    def read(self, known: str | None) -> CatalogReading | None:
        """Its entries, or None when it is still the version ``known``. Raises `CatalogUnavailable`."""
        found = self.catalog.read(known)
        if found is None:
            return None
        reading, texts, parts = CatalogReading(), [], []
        for where, value in self._bounded(found.items):
            if isinstance(value, bytes):
                texts.append((where, value))
                parts.append(value)
                continue
            try:
                entry = entry_of(value)
            except ValueError as error:
                reading.problems.append(SkippedEntry(where, None, str(error)))
                continue
            reading.entries.append(CatalogEntry(where, entry))
            parts.append(orjson.dumps(entry, option=orjson.OPT_SORT_KEYS))
        # In whatever order they came.
        reading.version = found.version or digest(*sorted(parts))
        if reading.version == known and not reading.problems:
            return None
        for where, text in texts:
            _read_manifest(text, where, reading)
        if len(reading.entries) > ENTRIES_MAX:
            raise self._too_large()
        return reading

    def _bounded(self, items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        until, left = monotonic() + self.options.timeout_s, BYTES_MAX
        for count, (where, value) in enumerate(items, 1):
            left -= len(value if isinstance(value, bytes) else repr(value))
            if left < 0 or count > ENTRIES_MAX:
                raise self._too_large()
            if monotonic() > until:
                raise CatalogUnavailable(
                    f"catalog {self.name!r}: not all of it within {self.options.timeout_s:g} s (timeout_s)"
                )
            yield where, value

    def _too_large(self) -> CatalogUnavailable:
        return CatalogUnavailable(
            f"catalog {self.name!r}: has more than {ENTRIES_MAX} entries or {BYTES_MAX} bytes"
        )


def open_catalog(name: str, settings: Settings) -> OpenCatalog:
    """Find a catalog in the settings. Raises `NotFound`, or `InvalidInput` with each option that is wrong."""
    given = dict(settings.catalogs.get(name, {}))
    if not given:
        known = ", ".join(sorted(settings.catalogs)) or "none"
        variable = f"FEEDQ_CATALOGS__{name.upper()}"
        raise NotFound(
            f"no catalog {name!r} here: set {variable}__KIND and its options (set up are: {known})"
        )
    kind = given.pop("kind", None)
    if not isinstance(kind, str):
        raise InvalidInput(
            f"catalog {name!r}: kind is missing; installed are {', '.join(installed(ENTRY_POINT_GROUP))}"
        )
    made = load_catalog(kind)
    options = valid_options(f"catalog {name!r}: {kind}", made.Options, given)
    setup = digest(kind.encode(), options.model_dump_json().encode())
    return OpenCatalog(name, made(options, settings), options, setup)


@cache
def load_catalog(kind: str) -> type[FeedCatalog]:
    """Raises `InvalidInput` when there is no such kind or it cannot be imported."""
    loaded: type[FeedCatalog] = load_installed(ENTRY_POINT_GROUP, kind, "kind of catalog")
    return loaded


def digest(*parts: bytes) -> str:
    """A short text that differs where any part does."""
    total = hashlib.sha256()
    for part in parts:
        total.update(b"%d:" % len(part))
        total.update(part)
    return total.hexdigest()


def entry_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row, document or item as it would stand in a manifest. Raises `ValueError`."""
    if len(row) == 1:
        (value,) = row.values()
        if isinstance(value, Mapping) or (isinstance(value, str) and value.lstrip()[:1] == "{"):
            whole = _json("the document", value)
            if not isinstance(whole, dict):
                raise ValueError("the document is no JSON object")
            return whole
    entry: dict[str, Any] = {}
    for column, value in row.items():
        if value is not None:
            given = _json(column, value) if column in JSON_KEYS else _plain(column, value)
            _put_at(entry, column.split(".", NESTED_MAX), given)
    return entry


def _json(column: str, value: Any) -> Any:
    try:
        return orjson.loads(value) if isinstance(value, str | bytes) else _plain(column, value)
    except orjson.JSONDecodeError:
        raise ValueError(f"{column}: is no JSON") from None


def _plain(column: str, value: Any) -> Any:
    """A value of a database as JSON has it. Raises `ValueError` where JSON has no such type."""
    try:
        # Not orjson: an integer may have more than 64 bits.
        return json.loads(json.dumps(value, default=plainer))
    except TypeError as error:
        raise ValueError(f"{column}: {error}") from None


@singledispatch
def plainer(value: Any) -> Any:
    """Something plainer of a value that JSON does not have. Kinds register types of their own."""
    raise TypeError(f"is of the type {type(value).__name__}, which JSON does not have")


@plainer.register
def _(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


plainer.register(UUID)(str)
plainer.register(set)(sorted)
plainer.register(date)(methodcaller("isoformat"))
plainer.register(time)(methodcaller("isoformat"))


def _read_manifest(raw: bytes, origin: str, reading: CatalogReading) -> None:
    """Add the feeds of a text that is a manifest or a JSON list of feeds, and what is wrong with it as a whole."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CatalogUnavailable(f"{origin}: is not UTF-8 text (byte {error.start})") from None
    if text.lstrip()[:1] == "[":
        text = f'{{"feeds": {text}}}'
    try:
        for document in documents.read(text, lists=("feeds",)):
            if "feeds" not in document.lists:
                reading.problems.append(SkippedEntry(origin, None, "has no list of feeds"))
            for number, entry in enumerate(document.lists.get("feeds", ()), 1):
                at = f"feed {number}" if entry.line is None else str(entry.line)
                reading.entries.append(CatalogEntry(f"{origin}:{at}", entry.value))
    except DocumentError as stop:
        at = origin if stop.line is None else f"{origin}:{stop.line}"
        reading.problems.append(SkippedEntry(at, None, str(stop)))


def _put_at(entry: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Put a value at a path of keys. Raises `ValueError` where a key on the way holds something else."""
    *above, last = path
    for key in above:
        entry = entry.setdefault(key, {})
        if not isinstance(entry, dict):
            raise ValueError(f"{'.'.join(path)}: there is a column {key} as well, which is no JSON object")
    entry[last] = {**value, **entry[last]} if isinstance(entry.get(last), dict) else value


def merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, and where it says nothing, the defaults."""
    result = {**defaults, **given}
    for key in defaults.keys() & given.keys():
        if isinstance(defaults[key], Mapping) and isinstance(given[key], Mapping):
            result[key] = merged(defaults[key], given[key])
    return result
