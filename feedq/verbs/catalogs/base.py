"""Catalogs: lists of feeds that live elsewhere, each read as a whole.

A kind of catalog is a class of options that yields contents, and nothing more: manifests as bytes, or feeds as
mappings, each with its place. What bounds them and reads them as feeds stands here, once. Settings name each
catalog, its kind and its options; other packages add kinds by the entry point group ``feedq.catalogs``.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from functools import singledispatch
from time import monotonic
from typing import Annotated, Any, ClassVar, Final, TypeAlias
from uuid import UUID

from pydantic import BeforeValidator, Field

from feedq.core.json_texts import read_json
from feedq.core.model import FeedSpec
from feedq.core.passwords import mask_url
from feedq.core.plugins import load_installed, valid_options
from feedq.core.remedies import driver_text, with_remedy
from feedq.core.values import StrictModel
from feedq.errors import CatalogUnavailable, NotFound
from feedq.settings import Settings
from feedq.verbs.manifests import NOTHING, Manifest

ENTRY_POINT_GROUP: Final = "feedq.catalogs"
BYTES_MAX: Final = 64 * 2**20
"""A larger catalog is not a list of feeds: it would be held in memory several times over."""
ENTRIES_MAX: Final = 100_000
"""Feeds of one catalog: they are all held in memory."""
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


class FeedCatalog(StrictModel):
    """A catalog as settings have it. Base of all kinds: their options are fields, and unknown ones are refused."""

    errors: ClassVar[tuple[type[Exception], ...]] = ()
    """The errors of its library that say that the catalog cannot be read."""

    defaults: Mapped = Field({})
    """Keys for entries that lack them, such as `{"connector": "tcp", "sink": {"table": "t"}}`. Mappings are
    merged."""
    removals_max: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the catalog's feeds that one sync may remove. Ten are always allowed; all of them never
    are."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Time limit for reading the catalog."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Names it in messages, such as ``table stations``; URLs are masked."""

    @abstractmethod
    def contents(self, settings: Settings) -> Iterator[tuple[str, Content]]:
        """Everything that the catalog has, part by part, each with its place, such as ``row 7``.

        What cannot be read must raise `CatalogUnavailable` or one of `errors`: an entry that is merely left out
        would have its feed removed. No single wait may be longer than ``timeout_s``.
        """

    def read(self, settings: Settings, there: Mapping[str, FeedSpec] = NOTHING) -> Manifest:
        """Everything that the catalog has; ``there`` are the feeds that were made from it before.

        Raises `CatalogUnavailable` when it cannot be read whole, within its time and bounds.
        """
        try:
            parts = list(self._parts(settings))
        except self.errors as error:
            said = with_remedy(driver_text(error), setting="its url")
            raise CatalogUnavailable(f"{self.where}: {mask_url(said)}") from None
        found = Manifest(known=("feeds",), defaults=self.defaults, there=there)
        for place, content in parts:
            if isinstance(content, ValueError):
                found.complain(place, str(content))
            elif isinstance(content, bytes):
                _read_text(found, content, place)
            else:
                found.read_entry("feeds", content, at=place)
        if len(found.feeds) > ENTRIES_MAX:
            raise self._too_large()
        return found

    def _parts(self, settings: Settings) -> Iterator[tuple[str, Content]]:
        """The contents as JSON has them. Raises `CatalogUnavailable` beyond the bounds."""
        until, left = monotonic() + self.timeout_s, BYTES_MAX
        for number, (place, content) in enumerate(self.contents(settings), 1):
            if isinstance(content, Mapping):
                content = _feed(content)
            left -= len(content if isinstance(content, bytes) else json.dumps(content, default=str))
            if left < 0 or number > ENTRIES_MAX:
                raise self._too_large()
            if monotonic() > until:
                late = f"not read completely within {self.timeout_s:g} s (timeout_s)"
                raise CatalogUnavailable(f"{self.where}: {late}")
            yield place, content

    def _too_large(self) -> CatalogUnavailable:
        return CatalogUnavailable(f"{self.where}: has more than {ENTRIES_MAX} entries or {BYTES_MAX} bytes")


def open_catalog(name: str, settings: Settings) -> FeedCatalog:
    """Find a catalog in the settings. Raises `NotFound`, or `InvalidInput` with each option that is wrong."""
    given = dict(settings.catalogs.get(name, {}))
    if not given:
        known = ", ".join(sorted(settings.catalogs)) or "none"
        variable = f"FEEDQ_CATALOGS__{name.upper()}"
        raise NotFound(
            f"no catalog {name!r} here: set {variable}__KIND and its options (set up here: {known})"
        )
    kind = str(given.pop("kind", ""))
    return valid_options(f"catalog {name!r}: {kind}", load_catalog(kind), given)


def load_catalog(kind: str) -> type[FeedCatalog]:
    """Raises `InvalidInput` when there is no such kind or it cannot be imported."""
    loaded: type[FeedCatalog] = load_installed(ENTRY_POINT_GROUP, kind, "kind of catalog")
    return loaded


# -- contents ------------------------------------------------------------------------------------------


@singledispatch
def plain(value: Any) -> Any:
    """What stands in JSON for a value that it does not have. Kinds of catalogs register their types. Raises
    `TypeError`."""
    raise TypeError(f"is of the type {type(value).__name__}, which JSON does not have")


plain.register(UUID, str)
for _kind in (date, time):
    plain.register(_kind, lambda at: at.isoformat())
plain.register(Decimal, lambda number: int(number) if number == number.to_integral_value() else float(number))


def _feed(row: Mapping[str, Any]) -> dict[str, Any] | ValueError:
    """A feed as JSON has it, with what its keys lead to below; or why it is none."""
    entry: dict[str, Any] = {}
    for key, value in row.items():
        try:
            if value is not None:
                _put(entry, key.split("."), json.loads(json.dumps(value, default=plain, allow_nan=False)))
        except (TypeError, ValueError, RecursionError) as error:
            return ValueError(f"{key}: {error}")
    return entry


def _put(entry: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Put a value at a path of keys. Raises `ValueError` where a key on the way holds something else."""
    *above, last = path
    for key in above:
        entry = entry.setdefault(key, {})
        if not isinstance(entry, dict):
            raise ValueError(f"{key} is also given, and is not a JSON object")
    entry[last] = {**value, **entry[last]} if isinstance(entry.get(last), dict) else value


def _read_text(manifest: Manifest, raw: bytes, where: str) -> None:
    """Read a manifest or a JSON list of feeds. Raises `CatalogUnavailable`."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CatalogUnavailable(f"{where}: is not UTF-8 text (byte {error.start})") from None
    manifest.read(f'{{"feeds": {text}}}' if text.lstrip()[:1] == "[" else text, origin=where)
