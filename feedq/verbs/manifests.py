"""Manifests: text in, declarations with their positions out.

A manifest is YAML or JSON, one document or several, each a mapping with lists of ``feeds``, ``schedules`` and
``queues``. Reading goes on after a mistake, so that all of them can be told at once: `parse` never raises, it
returns problems, each with its file and line (or the number of the feed, in JSON). `option_problems` says whether
the options of a feed suit its connector and sink; it connects nowhere, and no message repeats the value of an
option, because that may be a secret.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec

from feedq.connectors.base import parse_options
from feedq.core.expectations import Expectation
from feedq.core.model import FeedSpec
from feedq.core.schedule.spec import Queue, ScheduleSpec
from feedq.core.values import did_you_mean, json_problems, read
from feedq.errors import InvalidInput
from feedq.sinks.base import check_cursor, parse_sink, target_of
from feedq.sinks.event_time import event_time_finder
from feedq.verbs import documents
from feedq.verbs.documents import Document, DocumentError

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

encode: Final = msgspec.json.Encoder(order="deterministic").encode

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


class Manifest:
    """What manifests declare together, each name once, and all that is wrong with them."""

    def __init__(
        self,
        *,
        known: Sequence[str] = tuple(ENTRIES),
        defaults: Mapping[str, Any] = NOTHING,
        there: Mapping[str, FeedSpec] = NOTHING,
    ) -> None:
        """``known`` are the keys of `ENTRIES` that may be there; ``defaults`` is what each entry says unless it
        says otherwise, mappings merged. ``there`` are feeds that exist: an entry with the very words of one is
        not checked again, but stands for that one."""
        self.feeds: list[Declaration[FeedSpec]] = []
        self.schedules: list[Declaration[ScheduleSpec]] = []
        self.queues: list[Declaration[Queue]] = []
        self.problems: list[ManifestProblem] = []
        self.keys: set[str] = set()
        """Which keys of `ENTRIES` there are, empty lists included."""
        self._known, self._defaults, self._there = known, defaults, there
        self._declared_at: dict[tuple[str, str], str] = {}
        """Where each entry stands, by key and name."""

    def read(self, text: str, *, origin: str) -> None:
        """Read a manifest; ``origin`` names it in positions, usually its path."""
        numbers: Counter[str] = Counter()
        try:
            for document in documents.read(text):
                if not isinstance(document.value, dict):
                    lists = " or ".join(self._known)
                    raise DocumentError(document.lines.get(()), f"must be a mapping with a list of {lists}")
                for key, entries in document.value.items():
                    if not self._is_list(key, entries, at=_where(origin, document, key) or origin):
                        continue
                    for place, entry in enumerate(entries):
                        numbers[key] += 1
                        inside = partial(_where, origin, document, key, place)
                        at = inside() or f"{origin}: {key.removesuffix('s')} {numbers[key]}"
                        self.read_entry(key, entry, at=at, inside=inside)
        except DocumentError as stop:
            self.complain(origin if stop.line is None else f"{origin}:{stop.line}", str(stop))

    def _is_list(self, key: str, entries: Any, *, at: str) -> bool:
        """Whether this is a list of entries; complains of what has no place at the top of a manifest."""
        if key in self._known:
            self.keys.add(key)
            if isinstance(entries, list):
                return True
            self.complain(at, f"{key}: must be a list")
        elif not key.startswith("x-"):
            near = did_you_mean(key, self._known)
            known = ", ".join(self._known)
            self.complain(at, f"unknown key {key!r}; known are {known} (and x-… for your own){near}")
        return False

    def read_entry(
        self, key: str, entry: Any, *, at: str, inside: Callable[[str], str | None] = lambda key: None
    ) -> None:
        """Read a feed, schedule or queue, which stands at this place; ``inside`` says where its keys do."""
        noun = key.removesuffix("s")
        if not isinstance(entry, Mapping):
            self.complain(at, f"a {noun} must be a mapping with {_SHAPES[key]}")
            return
        given = _merged(self._defaults, entry)
        name = given.get("name")
        same = self._there.get(name) if key == "feeds" and isinstance(name, str) else None
        found = same if same is not None and _says(given, same) else read(ENTRIES[key], given)
        if isinstance(found, list):
            known = name if isinstance(name, str) else None
            who = f"{noun}: " if known is None else f"{noun} {known!r}: "
            for wrong, what in found:
                self.complain(inside(wrong) or at, who + what, known)
        elif before := self._declared_at.get((key, found.name)):
            self.complain(at, f"{noun} {found.name!r} is already declared at {before}", found.name)
        else:
            self._declared_at[key, found.name] = at
            declaration: Declaration[Any] = Declaration(found, at)
            getattr(self, key).append(declaration)

    def complain(self, at: str, what: str, name: str | None = None) -> None:
        """Add a mistake, of the entry of this name if it has one."""
        self.problems.append(ManifestProblem(at, what, name))


def parse(text: str, *, origin: str) -> Manifest:
    """Read a manifest; ``origin`` names it in positions, usually its path."""
    manifest = Manifest()
    manifest.read(text, origin=origin)
    return manifest


def _where(origin: str, document: Document, *place: str | int) -> str | None:
    """Where in a document this is, such as ``feeds.yaml:12``; None in JSON, which comes without lines."""
    line = document.lines.get(place)
    return None if line is None else f"{origin}:{line}"


def _says(given: Mapping[str, Any], there: FeedSpec) -> bool:
    """Whether an entry has the words of a feed that is there; whether that runs it need not say."""
    known = there.plain()
    if "target_state" not in given:
        known.pop("target_state", None)
    # Equal in Python, 1 and true are written differently.
    return given == known and encode(given) == encode(known)


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, and where it says nothing, the defaults."""
    result = {**defaults, **given}
    for key in defaults.keys() & given.keys():
        if isinstance(defaults[key], Mapping) and isinstance(given[key], Mapping):
            result[key] = _merged(defaults[key], given[key])
    return result


# -- the options of feeds ------------------------------------------------------------------------------


SECRET_OPTIONS = frozenset(
    (
        *("password", "passwd", "token", "nkey_seed", "credentials", "api_key"),
        *("authorization", "proxy-authorization", "cookie", "x-api-key"),
    )
)
"""Names of options, variables and headers that hold nothing but a secret, or one with a word before it."""

OPTION_KEYS = frozenset(("connector", "source", "sink", "initial_cursor", "expect"))
"""The keys of a feed that `option_problems` looks at."""
_REFERENCE = re.compile(r"\$\{(?:env|file):")
_USER_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/@:]*:(?P<password>[^\s/@]+)@")
_QUERY_PASSWORD = re.compile(r"://\S*?[?&](?:password|passwd)=(?P<password>[^&\s]+)", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")


def option_problems(spec: FeedSpec) -> list[str]:
    """What is wrong with the options of connector and sink, as such and beside one another."""
    given = {"source": spec.source, "sink": spec.sink}
    found = sorted(f"{path}: {what}" for path, what in json_problems(given, _secret_problem))
    options = None
    try:
        options = parse_options(spec.connector, spec.source)
        check_cursor(options, spec.initial_cursor)
    except InvalidInput as error:
        found.append(str(error))
    try:
        sink = parse_sink(spec.sink)
        if options is not None:
            target = target_of(sink, options)
            if (lag := spec.expect.get(Expectation.MAX_EVENT_LAG)) is not None:
                event_time_finder(lag["at"], target)
    except InvalidInput as error:
        found.append(str(error))
    except ValueError as error:
        found.append(f"expect.{error}")
    return found


def _secret_problem(keys: tuple[Any, ...], value: Any) -> str | None:
    """Secrets are references under source.secrets, which its connector checks, and nowhere else."""
    if keys[:2] == ("source", "secrets") or not isinstance(value, str):
        return None
    if _REFERENCE.search(value):
        return (
            "${env:…} and ${file:…} are allowed only under source.secrets; "
            "give the secret a name there and write {name} here"
        )
    instead = "put it under source.secrets as a reference and write {name} in its place"
    if keys[0] == "sink":
        instead = "name a sink, and set its URL as FEEDQ_SINKS__<NAME> on the workers"
    found = [*_USER_PASSWORD.finditer(value), *_QUERY_PASSWORD.finditer(value)]
    if any(not _PLACEHOLDER.fullmatch(match["password"]) for match in found):
        return f"holds a password in a URL; {instead}"
    is_secret = keys[0] == "source" and str(keys[-1]).lower() in SECRET_OPTIONS
    if is_secret and value and not _PLACEHOLDER.search(value):
        return f"would be stored and shown in plain text; {instead}"
    return None
