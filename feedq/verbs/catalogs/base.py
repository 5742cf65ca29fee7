"""What a catalog is: something that is read as a whole, and gives entries.

Settings name each catalog and give its kind and options; other packages add kinds by the entry point group
``feedq.verbs.catalogs``. A catalog raises `CatalogUnavailable` when it cannot be read, and then nothing is
changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Protocol, TypeVar
from uuid import UUID

import orjson
from pydantic import BeforeValidator, Field

from feedq.connectors.base import installed, load_installed, valid_options
from feedq.core.values import StrictModel
from feedq.errors import CatalogUnavailable, InvalidInput, NotFound
from feedq.settings import Settings
from feedq.verbs import documents
from feedq.verbs.documents import DocumentError
from feedq.verbs.manifest.reader import ManifestProblem

T = TypeVar("T")

ENTRY_POINT_GROUP = "feedq.catalogs"
NO_TYPES: Mapping[type, Callable[[Any], Any]] = MappingProxyType({})
BYTES_MAX = 64 * 2**20
"""A larger answer, file or result is no list of feeds: it would be held in memory several times over."""


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


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One feed as the catalog has it."""

    where: str
    """Such as ``feeds.yaml:12``, for messages."""
    value: Any
    """As in a manifest, before ``defaults``."""


@dataclass(frozen=True, slots=True)
class CatalogReading:
    """All that a catalog has."""

    entries: Sequence[CatalogEntry]
    version: str
    """Differs from the one of any other content."""
    problems: Sequence[ManifestProblem] = ()
    """What could not be read as entries."""

    def unless(self, known: str | None) -> CatalogReading | None:
        """None if it is still the version ``known``, and nothing is wrong with it."""
        return None if self.version == known and not self.problems else self


class FeedCatalog(Protocol):
    """Reads one catalog. Made anew for each sync."""

    Options: ClassVar[type[CatalogOptions]]

    def __init__(self, options: Any, settings: Settings) -> None: ...

    def read(self, known: str | None) -> CatalogReading | None:
        """Everything that the catalog has, or None when that is still the version ``known``.

        Raises:
            CatalogUnavailable: it cannot be read now, or not as it is set up.
        """


@dataclass(frozen=True, slots=True)
class OpenCatalog:
    """A catalog of the settings, ready to be read."""

    name: str
    catalog: FeedCatalog
    options: CatalogOptions
    setup: str
    """Differs when kind or options do; secrets do not count."""


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


def decoded(raw: bytes, *, origin: str) -> str:
    """Raises `CatalogUnavailable` when it is too large or no text."""
    if len(raw) > BYTES_MAX:
        raise CatalogUnavailable(f"{origin}: is larger than {BYTES_MAX} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CatalogUnavailable(f"{origin}: is not UTF-8 text (byte {error.start})") from None


def reading_of_rows(rows: Iterable[tuple[str, T]], entry_of: Callable[[T], Any]) -> CatalogReading:
    """What rows give, each with where it is; in whatever order they come. ``entry_of`` may raise ValueError."""
    entries: list[CatalogEntry] = []
    problems: list[ManifestProblem] = []
    for where, row in rows:
        try:
            entries.append(CatalogEntry(where, entry_of(row)))
        except ValueError as error:
            problems.append(ManifestProblem(where, str(error)))
    version = digest(*sorted(orjson.dumps(e.value, option=orjson.OPT_SORT_KEYS) for e in entries))
    return CatalogReading(entries, version, problems)


def reading_of_texts(texts: Iterable[tuple[str, bytes]], version: str) -> CatalogReading:
    """What texts give that are manifests, each with where it is. Raises as `decoded`."""
    found = [entries_in(decoded(raw, origin=origin), origin=origin) for origin, raw in texts]
    entries = [entry for read, _ in found for entry in read]
    return CatalogReading(entries, version, [problem for _, wrong in found for problem in wrong])


def entries_in(text: str, *, origin: str) -> tuple[list[CatalogEntry], list[ManifestProblem]]:
    """The feeds of a text that is a manifest, or a JSON list of feeds, and what is wrong with it as a whole."""
    body = text.removeprefix("\ufeff")
    if body.lstrip()[:1] == "[":
        body = f'{{"feeds": {body}}}'
    entries: list[CatalogEntry] = []
    problems: list[ManifestProblem] = []
    try:
        for document in documents.read(body, lists=("feeds",)):
            if "feeds" not in document.lists:
                problems.append(ManifestProblem(origin, "has no list of feeds"))
            for number, entry in enumerate(document.lists.get("feeds", ()), 1):
                at = f"feed {number}" if entry.line is None else str(entry.line)
                entries.append(CatalogEntry(f"{origin}:{at}", entry.value))
    except DocumentError as stop:
        at = origin if stop.line is None else f"{origin}:{stop.line}"
        problems.append(ManifestProblem(at, str(stop)))
    return entries, problems


def plain(value: Any, *, where: str = "", also: Mapping[type, Callable[[Any], Any]] = NO_TYPES) -> Any:
    """A value of a database as JSON has it; ``also`` makes something plainer of other types.

    Raises:
        ValueError: it is of a type that JSON does not have, with ``where`` and the path to it.
    """
    if (make := also.get(type(value))) is not None:
        value = make(value)
    match value:
        case None | bool() | str() | float():
            return value
        case int():
            return int(value)
        case Mapping():
            inner = value.items()
            return {str(k): plain(v, where=f"{where}.{k}".lstrip("."), also=also) for k, v in inner}
        case list():
            return [plain(one, where=where, also=also) for one in value]
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case datetime() | date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
    raise ValueError(f"{where}: is of the type {type(value).__name__}, which JSON does not have")


def put_at(entry: dict[str, Any], path: Sequence[str], value: Any) -> None:
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
