"""A manifest as a whole: its documents, their lists, and the position of everything that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from feedq import documents
from feedq.documents import Document, DocumentError, DocumentValue
from feedq.errors import InvalidInput
from feedq.manifest.feed_declarations import plain, read_feed, read_resume
from feedq.manifest.jobs import (
    plain_calendar,
    plain_queue,
    plain_schedule,
    read_calendar,
    read_queue,
    read_schedule,
)
from feedq.model import FeedSpec, StartCursor
from feedq.schedule.model import Calendar, Queue, ScheduleSpec

ENTRIES_MAX = 100_000
"""Feeds of one call, and schedules, and queues: they are all held in memory."""

TOP_KEYS = ("feeds", "schedules", "queues", "calendars")
_SHAPES = {
    "feeds": "name, connector and sink",
    "schedules": "name, task, and one of cron, every and at",
    "queues": "name, and rate_per_s or concurrency",
    "calendars": "name and dates",
}

Spec = TypeVar("Spec", FeedSpec, ScheduleSpec, Queue, Calendar)
Kept = TypeVar("Kept", FeedSpec, ScheduleSpec, Queue, Calendar)


@dataclass(frozen=True, slots=True)
class Declaration(Generic[Spec]):
    """One feed, schedule, queue or calendar as declared, and where."""

    spec: Spec
    where: str
    """Such as ``feeds.yaml:12``."""
    says_target: bool
    """Whether ``target_state`` or, of a schedule, ``paused`` was given; if not, one that is there already keeps
    its own."""
    resume: StartCursor | None = None
    """Of a feed."""


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

    declarations: tuple[Declaration[FeedSpec], ...] = ()
    """The feeds."""
    problems: tuple[ManifestProblem, ...] = ()
    schedules: tuple[Declaration[ScheduleSpec], ...] = ()
    queues: tuple[Declaration[Queue], ...] = ()
    calendars: tuple[Declaration[Calendar], ...] = ()
    keys: frozenset[str] = frozenset()
    """Which of `TOP_KEYS` it has, empty lists included."""


def parse(text: str, *, origin: str) -> Manifest:
    """Read a manifest; ``origin`` names it in positions, usually its path."""
    reader = _Reader(origin)
    try:
        for document in documents.read(text, lists=TOP_KEYS):
            reader.read(document)
    except DocumentError as stop:
        reader.complain(stop.line, str(stop))
    return Manifest(
        declarations=tuple(reader.feeds),
        problems=tuple(reader.problems),
        schedules=tuple(reader.schedules),
        queues=tuple(reader.queues),
        calendars=tuple(reader.calendars),
        keys=frozenset(reader.keys),
    )


def parse_specs(text: str, *, origin: str) -> list[FeedSpec]:
    """The feeds of a manifest that must be right. Raises `InvalidInput` with every problem."""
    manifest = join([parse(text, origin=origin)])
    if manifest.problems:
        raise InvalidInput("\n".join(map(str, manifest.problems)))
    return [declaration.spec for declaration in manifest.declarations]


def join(manifests: Sequence[Manifest]) -> Manifest:
    """Several manifests as one; what is declared twice is a problem."""
    problems = [problem for manifest in manifests for problem in manifest.problems]
    return Manifest(
        declarations=_unique("feed", [d for m in manifests for d in m.declarations], problems),
        schedules=_unique("schedule", [d for m in manifests for d in m.schedules], problems),
        queues=_unique("queue", [d for m in manifests for d in m.queues], problems),
        calendars=_unique("calendar", [d for m in manifests for d in m.calendars], problems),
        keys=frozenset(key for manifest in manifests for key in manifest.keys),
        problems=tuple(problems),
    )


def _unique(
    noun: str, declared: Sequence[Declaration[Kept]], problems: list[ManifestProblem]
) -> tuple[Declaration[Kept], ...]:
    """Those that were not declared before; the others, and too many of them, become problems."""
    first: dict[str, Declaration[Kept]] = {}
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


def dump(
    feeds: Iterable[FeedSpec] = (),
    *,
    resumes: Mapping[str, StartCursor] | None = None,
    schedules: Iterable[ScheduleSpec] | None = None,
    queues: Sequence[Queue] = (),
    calendars: Sequence[Calendar] = (),
) -> str:
    """A manifest that declares all of these; reading it gives them back."""
    return "".join(
        dump_parts(feeds, resumes=resumes, schedules=schedules, queues=queues, calendars=calendars)
    )


def dump_parts(
    feeds: Iterable[FeedSpec] = (),
    *,
    resumes: Mapping[str, StartCursor] | None = None,
    schedules: Iterable[ScheduleSpec] | None = None,
    queues: Sequence[Queue] = (),
    calendars: Sequence[Calendar] = (),
) -> Iterator[str]:
    """The same in parts, for whoever writes a hundred thousand of them."""
    known = resumes or {}
    lists: dict[str, Iterable[Any]] = {"feeds": (plain(spec, known.get(spec.name)) for spec in feeds)}
    if schedules is not None:
        lists = {"schedules": map(plain_schedule, schedules)}
        lists |= {"queues": map(plain_queue, queues)} if queues else {}
        lists |= {"calendars": map(plain_calendar, calendars)} if calendars else {}
    return documents.dump_lists(lists)


class _Reader:
    """Collects declarations and problems over the documents of one manifest."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.feeds: list[Declaration[FeedSpec]] = []
        self.schedules: list[Declaration[ScheduleSpec]] = []
        self.queues: list[Declaration[Queue]] = []
        self.calendars: list[Declaration[Calendar]] = []
        self.problems: list[ManifestProblem] = []
        self.keys: set[str] = set()
        self._entries = dict.fromkeys(TOP_KEYS, 0)

    def complain(self, line: int | None, what: str) -> None:
        self.problems.append(ManifestProblem(self.origin if line is None else f"{self.origin}:{line}", what))

    def read(self, document: Document) -> None:
        for key, line in document.keys.items():
            if key in TOP_KEYS:
                self.keys.add(key)
                if key not in document.lists:
                    self.complain(line, f"{key}: must be a list")
            elif not key.startswith("x-"):
                known = ", ".join(TOP_KEYS)
                self.complain(line, f"unknown key {key!r}; known are {known} (and x-… for your own)")
        for key, (read, into, target_key) in self._kinds().items():
            for entry in document.lists.get(key, ()):
                self._read_entry(key, entry, read, into, target_key)

    def _kinds(self) -> dict[str, tuple[Callable[[Mapping[Any, Any]], Any], list[Any], str]]:
        """How an entry of each list is read, where it goes, and its key that says whether it is to run."""
        return {
            "feeds": (read_feed, self.feeds, "target_state"),
            "schedules": (read_schedule, self.schedules, "paused"),
            "queues": (read_queue, self.queues, ""),
            "calendars": (read_calendar, self.calendars, ""),
        }

    def _read_entry(
        self,
        key: str,
        entry: DocumentValue,
        read: Callable[[Mapping[Any, Any]], Any],
        into: list[Any],
        target_key: str,
    ) -> None:
        noun = key.removesuffix("s")
        self._entries[key] += 1
        number = f"{self.origin}: {noun} {self._entries[key]}"
        at = number if entry.line is None else f"{self.origin}:{entry.line}"
        if not isinstance(entry.value, Mapping):
            self.problems.append(ManifestProblem(at, f"a {noun} must be a mapping with {_SHAPES[key]}"))
            return
        found = read(entry.value)
        if not isinstance(found, list):
            resume = read_resume(entry.value) if key == "feeds" else None
            into.append(Declaration(found, at, target_key in entry.value, resume))
            return
        name = entry.value.get("name")
        who = f"{noun} {name!r}: " if isinstance(name, str) else f"{noun}: "
        for wrong, what in found:
            line = entry.key_lines.get(wrong)
            self.problems.append(ManifestProblem(at if line is None else f"{self.origin}:{line}", who + what))
