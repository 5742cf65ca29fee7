"""A manifest as a whole: its documents, their lists, and the position of everything that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest declares, and all that is wrong with it."""

    feeds: tuple[Declaration[FeedSpec], ...] = ()
    schedules: tuple[Declaration[ScheduleSpec], ...] = ()
    queues: tuple[Declaration[Queue], ...] = ()
    problems: tuple[ManifestProblem, ...] = ()
    keys: frozenset[str] = frozenset()
    """Which keys of `ENTRIES` it has, empty lists included."""


def parse(text: str, *, origin: str) -> Manifest:
    """Read a manifest; ``origin`` names it in positions, usually its path."""
    reader = _Reader(origin)
    try:
        for document in documents.read(text, lists=tuple(ENTRIES)):
            reader.read(document)
    except DocumentError as stop:
        reader.complain(stop.line, str(stop))
    found: dict[str, Any] = {key: tuple(declared) for key, declared in reader.found.items()}
    return Manifest(**found, problems=tuple(reader.problems), keys=frozenset(reader.keys))


def join(manifests: Sequence[Manifest]) -> Manifest:
    """Several manifests as one; what is declared twice is a problem."""
    problems = [problem for manifest in manifests for problem in manifest.problems]
    found: dict[str, Any] = {
        key: _unique(key.removesuffix("s"), [d for m in manifests for d in getattr(m, key)], problems)
        for key in ENTRIES
    }
    keys = frozenset(key for manifest in manifests for key in manifest.keys)
    return Manifest(**found, problems=tuple(problems), keys=keys)


def _unique(
    noun: str, declared: Sequence[Declaration[Any]], problems: list[ManifestProblem]
) -> tuple[Declaration[Any], ...]:
    """Keeps what was not declared before; the others, and too many of them, become problems."""
    first: dict[str, Declaration[Any]] = {}
    for declaration in declared:
        name = declaration.spec.name
        if name in first:
            what = f"{noun} {name!r} was declared before, at {first[name].where}"
            problems.append(ManifestProblem(declaration.where, what))
        else:
            first[name] = declaration
    if len(first) > ENTRIES_MAX:
        problems.append(
            ManifestProblem("manifest", f"{len(first)} {noun}s; at most {ENTRIES_MAX} are allowed")
        )
    return tuple(first.values())


class _Reader:
    """Collects declarations and problems over the documents of one manifest."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.found: dict[str, list[Declaration[Any]]] = {key: [] for key in ENTRIES}
        self.problems: list[ManifestProblem] = []
        self.keys: set[str] = set()
        self._entries = dict.fromkeys(ENTRIES, 0)

    def complain(self, line: int | None, what: str) -> None:
        self.problems.append(ManifestProblem(self.origin if line is None else f"{self.origin}:{line}", what))

    def read(self, document: Document) -> None:
        for key, line in document.keys.items():
            if key in ENTRIES:
                self.keys.add(key)
                if key not in document.lists:
                    self.complain(line, f"{key}: must be a list")
            elif not key.startswith("x-"):
                known = ", ".join(ENTRIES)
                near = did_you_mean(key, ENTRIES)
                self.complain(line, f"unknown key {key!r}; known are {known} (and x-… for your own){near}")
        for key in ENTRIES:
            for entry in document.lists.get(key, ()):
                self._read_entry(key, entry)

    def _read_entry(self, key: str, entry: DocumentValue) -> None:
        noun, given = key.removesuffix("s"), entry.value
        self._entries[key] += 1
        number = f"{self.origin}: {noun} {self._entries[key]}"
        at = number if entry.line is None else f"{self.origin}:{entry.line}"
        if not isinstance(given, Mapping):
            self.problems.append(ManifestProblem(at, f"a {noun} must be a mapping with {_SHAPES[key]}"))
            return
        found = read(ENTRIES[key], given)
        if not isinstance(found, list):
            self.found[key].append(Declaration(found, at))
            return
        name = given.get("name")
        who = f"{noun} {name!r}: " if isinstance(name, str) else f"{noun}: "
        for wrong, what in found:
            line = entry.key_lines.get(wrong)
            self.problems.append(ManifestProblem(at if line is None else f"{self.origin}:{line}", who + what))
