"""Catalogs: lists of feeds that live elsewhere, each read as a whole.

A kind of catalog yields contents, and nothing more: manifests as bytes, or feeds as mappings, each with its place.
What bounds them, compares them with the last time and reads them as feeds stands here, once. Settings name each
catalog, its kind and its options; other packages add kinds by the entry point group ``feedq.catalogs``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from functools import singledispatch
from time import monotonic
from types import NoneType
from typing import Annotated, Any, ClassVar, Final, Protocol, TypeAlias
from uuid import UUID

import msgspec
from pydantic import BeforeValidator, Field

from feedq.connectors.base import installed, load_installed, valid_options
from feedq.core.passwords import mask_url
from feedq.core.remedies import driver_text, with_remedy
from feedq.core.values import StrictModel, read_json
from feedq.errors import CatalogUnavailable, InvalidInput, NotFound
from feedq.settings import Settings
from feedq.verbs import documents
from feedq.verbs.documents import DocumentError
from feedq.verbs.manifest.reader import ENTRIES_MAX, ManifestProblem

ENTRY_POINT_GROUP: Final = "feedq.catalogs"
BYTES_MAX: Final = 64 * 2**20
"""A larger catalog is no list of feeds: it would be held in memory several times over."""
Content: TypeAlias = bytes | Mapping[str, Any] | ValueError
"""A manifest, or a JSON list of feeds, as it was read; a feed, in which dots in keys lead below; or why a row is
no feed."""


def from_text(given: Any) -> Any:
    """Settings give an option of a catalog as text."""
    try:
        return read_json(given) if isinstance(given, str) else given
    except ValueError:
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
    """Longest time for all of it, connecting included."""


class FeedCatalog(Protocol):
    """Reads one catalog. Made anew for each sync."""

    Options: ClassVar[type[CatalogOptions]]
    errors: ClassVar[tuple[type[Exception], ...]]
    """The errors of its library that say that the catalog cannot be read."""
    where: str
    """Names it in messages, such as ``table stations``; URLs are masked."""

    def __init__(self, options: Any, settings: Settings) -> None: ...

    def contents(self) -> Iterator[tuple[str, Content]]:
        """Everything that the catalog has, part by part, each with its place, such as ``row 7``.

        What cannot be read must raise `CatalogUnavailable` or one of `errors`: an entry that is merely left out
        would have its feed removed. No single wait may be longer than ``timeout_s``.
        """


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


@dataclass(frozen=True, slots=True)
class OpenCatalog:
    """A catalog of the settings, ready to be read."""

    name: str
    catalog: FeedCatalog
    options: CatalogOptions
    setup: str
    """Differs when kind or options do; secrets do not count."""

    def read(self, known: str | None) -> CatalogReading | None:
        """Everything that the catalog has, or None when that is still the version ``known``.

        Raises `CatalogUnavailable` when it cannot be read whole, within its time and bounds.
        """
        try:
            parts = list(self._bounded())
        except self.catalog.errors as error:
            said = with_remedy(driver_text(error), setting="its url")
            raise CatalogUnavailable(f"{self.catalog.where}: {mask_url(said)}") from None
        # Rows come in any order.
        version = digest(*sorted(raw for _, raw, _ in parts))
        if version == known:
            return None
        entries: list[CatalogEntry] = []
        problems = [ManifestProblem(where, str(content)) for where, _, content in parts if _is_wrong(content)]
        for where, raw, content in parts:
            if isinstance(content, bytes):
                _read_text(raw, where, entries, problems)
            elif not _is_wrong(content):
                entries.append(CatalogEntry(where, msgspec.json.decode(raw)))
        if len(entries) > ENTRIES_MAX:
            raise self._too_large()
        return CatalogReading(entries, version, problems)

    def _bounded(self) -> Iterator[tuple[str, bytes, Content]]:
        """The contents, each as bytes as well. Raises `CatalogUnavailable` beyond the bounds."""
        until, left = monotonic() + self.options.timeout_s, BYTES_MAX
        for number, (place, content) in enumerate(self.catalog.contents(), 1):
            raw, content = _as_bytes(content)
            left -= len(raw)
            if left < 0 or number > ENTRIES_MAX:
                raise self._too_large()
            if monotonic() > until:
                late = f"not read whole within {self.options.timeout_s:g} s (timeout_s)"
                raise CatalogUnavailable(f"{self.catalog.where}: {late}")
            yield place, raw, content

    def _too_large(self) -> CatalogUnavailable:
        return CatalogUnavailable(
            f"{self.catalog.where}: has more than {ENTRIES_MAX} entries or {BYTES_MAX} bytes"
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


# -- contents ------------------------------------------------------------------------------------------


@singledispatch
def plain(value: Any) -> Any:
    """What JSON has for a value of a database. Kinds of catalogs register their types. Raises `TypeError`."""
    raise TypeError(f"is of the type {type(value).__name__}, which JSON does not have")


for _plain_already in (NoneType, bool, float, date, time, UUID):
    plain.register(_plain_already, lambda value: value)
plain.register(str, str)  # and int: drivers have subclasses of both
plain.register(int, int)


@plain.register
def _(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)


@plain.register(dict)
def _(values: dict[str, Any]) -> dict[str, Any]:
    return {key: plain(value) for key, value in values.items()}


@plain.register(list)
@plain.register(tuple)
def _(values: Sequence[Any]) -> list[Any]:
    return [plain(value) for value in values]


def _is_wrong(content: Content) -> bool:
    return isinstance(content, ValueError)


def _as_bytes(content: Content) -> tuple[bytes, Content]:
    """A content as it is compared; a row that JSON cannot hold becomes the error that says so."""
    if isinstance(content, Mapping):
        try:
            return _row(content), content
        except ValueError as error:
            content = error
    return (content if isinstance(content, bytes) else str(content).encode()), content


def _row(row: Mapping[str, Any]) -> bytes:
    """A feed as JSON, with what its keys lead to below. Raises `ValueError`."""
    entry: dict[str, Any] = {}
    for key, value in row.items():
        try:
            raw = msgspec.json.encode(plain(value))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{key}: {error}") from None
        if value is not None:
            put_at(entry, key.split("."), msgspec.json.decode(raw))
    return msgspec.json.encode(entry, order="sorted")


def put_at(entry: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Put a value at a path of keys. Raises `ValueError` where a key on the way holds something else."""
    *above, last = path
    for key in above:
        entry = entry.setdefault(key, {})
        if not isinstance(entry, dict):
            raise ValueError(f"{'.'.join(path)}: {key} is given as well, and is no JSON object")
    entry[last] = {**value, **entry[last]} if isinstance(entry.get(last), dict) else value


def _read_text(raw: bytes, where: str, entries: list[CatalogEntry], problems: list[ManifestProblem]) -> None:
    """Add the feeds of a manifest or JSON list, or what is wrong with it. Raises `CatalogUnavailable`."""
    try:
        body = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CatalogUnavailable(f"{where}: is not UTF-8 text (byte {error.start})") from None
    if body.lstrip()[:1] == "[":
        body = f'{{"feeds": {body}}}'
    try:
        for document in documents.read(body, lists=("feeds",)):
            if "feeds" not in document.lists:
                problems.append(ManifestProblem(where, "has no list of feeds"))
            for number, entry in enumerate(document.lists.get("feeds", ()), 1):
                at = f"feed {number}" if entry.line is None else str(entry.line)
                entries.append(CatalogEntry(f"{where}:{at}", entry.value))
    except DocumentError as stop:
        at = where if stop.line is None else f"{where}:{stop.line}"
        problems.append(ManifestProblem(at, str(stop)))
