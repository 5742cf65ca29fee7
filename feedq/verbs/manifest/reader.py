"""Manifests as a whole: their documents, lists and entries, and the position of everything that is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from feedq.core.model import FeedSpec
from feedq.core.schedule.spec import Queue, ScheduleSpec
from feedq.core.values import did_you_mean, read
from feedq.verbs import documents
from feedq.verbs.documents import Document, DocumentError, DocumentValue

ENTRIES_MAX = 100_000
"""Feeds of one call, and schedules, and queues: they are all held in memory."""

ENTRIES: Mapping[str, type[FeedSpec | ScheduleSpec | Queue]] = {
    "feeds": FeedSpec,
    "schedules": ScheduleSpec,
    "queues": Queue,
}
"""The keys at the top of a manifest, and what each is a list of."""
_SHAPES = {
    "feeds": "name, connector and sink",
    "schedules": "name, task, and one of cron, every and at",
    "queues": "name, and rate_per_s or concurrency",
}

NOTHING: Mapping[str, Any] = MappingProxyType({})

E = TypeVar("E", FeedSpec, ScheduleSpec, Queue)


@dataclass(frozen=True, slots=True)
class Declaration(Generic[E]):
    """One feed, schedule or queue as declared, and where."""

    spec: E
    where: str
    """Such as ``feeds.yaml:12``."""


@dataclass(frozen=True, slots=True)
class ManifestProblem:
    """One mistake in a manifest."""

    where: str
    what: str
    name: str | None = None
    """The name of the entry that is wrong, if it has one."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What manifests declare, and all that is wrong with them."""

    feeds: tuple[Declaration[FeedSpec], ...] = ()
    schedules: tuple[Declaration[ScheduleSpec], ...] = ()
    queues: tuple[Declaration[Queue], ...] = ()
    problems: tuple[ManifestProblem, ...] = ()
    keys: frozenset[str] = frozenset()
    """Which keys of `ENTRIES` they have, empty lists included."""


def parse(text: str, *, origin: str) -> Manifest:
    """Read a manifest; ``origin`` names it in positions, usually its path."""
    reader = ManifestReader()
    reader.read(text, origin=origin)
    return reader.manifest()


class ManifestReader:
    """Collects what manifests declare, each name once, and all that is wrong with them."""

    def __init__(
        self, *, known: Sequence[str] = tuple(ENTRIES), defaults: Mapping[str, Any] = NOTHING
    ) -> None:
        """``known`` are the keys of `ENTRIES` that may be there; ``defaults`` is what each entry says unless it
        says otherwise, mappings merged."""
        self.problems: list[ManifestProblem] = []
        self._known, self._defaults = known, defaults
        self._found: dict[str, dict[str, Declaration[Any]]] = {key: {} for key in ENTRIES}
        self._keys: set[str] = set()

    def read(self, text: str, *, origin: str) -> None:
        """Read a manifest; ``origin`` names it in positions, usually its path."""
        numbers: Counter[str] = Counter()
        try:
            for document in documents.read(text, lists=self._known):
                self._check_keys(document, origin)
                for key, entries in document.lists.items():
                    for entry in entries:
                        numbers[key] += 1
                        number = f"{origin}: {key.removesuffix('s')} {numbers[key]}"
                        self.read_entry(key, entry, at=_at(origin, entry.line) or number, origin=origin)
        except DocumentError as stop:
            self.complain(_at(origin, stop.line) or origin, str(stop))

    def read_entry(self, key: str, entry: DocumentValue, *, at: str, origin: str = "") -> None:
        """Read a feed, schedule or queue, which stands at this place."""
        noun = key.removesuffix("s")
        if not isinstance(entry.value, Mapping):
            self.complain(at, f"a {noun} must be a mapping with {_SHAPES[key]}")
            return
        given = _merged(self._defaults, entry.value)
        found, name = read(ENTRIES[key], given), given.get("name")
        if isinstance(found, list):
            known = name if isinstance(name, str) else None
            who = f"{noun}: " if known is None else f"{noun} {known!r}: "
            for wrong, what in found:
                place = _at(origin, entry.key_lines.get(wrong)) or at
                self.complain(place, who + what, known)
        elif (before := self._found[key].setdefault(found.name, Declaration(found, at))).spec is not found:
            self.complain(at, f"{noun} {found.name!r} was declared before, at {before.where}", found.name)

    def manifest(self) -> Manifest:
        for key, declared in self._found.items():
            if len(declared) > ENTRIES_MAX:
                self.complain("manifest", f"{len(declared)} {key}; at most {ENTRIES_MAX} are allowed")
        found: dict[str, Any] = {key: tuple(declared.values()) for key, declared in self._found.items()}
        return Manifest(**found, problems=tuple(self.problems), keys=frozenset(self._keys))

    def _check_keys(self, document: Document, origin: str) -> None:
        for key, line in document.keys.items():
            at = _at(origin, line) or origin
            if key in self._known:
                self._keys.add(key)
                if key not in document.lists:
                    self.complain(at, f"{key}: must be a list")
            elif not key.startswith("x-"):
                near = did_you_mean(key, self._known)
                known = ", ".join(self._known)
                self.complain(at, f"unknown key {key!r}; known are {known} (and x-… for your own){near}")

    def complain(self, at: str, what: str, name: str | None = None) -> None:
        """Add a mistake, of the entry of this name if it has one."""
        self.problems.append(ManifestProblem(at, what, name))


def _at(origin: str, line: int | None) -> str | None:
    return None if line is None else f"{origin}:{line}"


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, and where it says nothing, the defaults."""
    result = {**defaults, **given}
    for key in defaults.keys() & given.keys():
        if isinstance(defaults[key], Mapping) and isinstance(given[key], Mapping):
            result[key] = _merged(defaults[key], given[key])
    return result
