"""feeds.yaml: text in, declarations with their positions out; and the way back.

A manifest is YAML or JSON, one document or several, each a mapping with a list of ``feeds``.

Reading goes on after a mistake, so that all of them can be told at once: `parse` never raises, it returns
problems, each with its file and line (or the number of the feed, in JSON). Whether the options suit their
connector is not judged here but by `feedq.declaration`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedq import documents
from feedq.documents import Document, Entry, Unreadable
from feedq.errors import InvalidInput
from feedq.model import FeedSpec, Selector, TargetState

FEEDS_MAX = 100_000

TOP_KEYS = ("feeds",)
FEED_KEYS = ("name", "tenant", "connector", "source", "sink", "labels", "selector", "weight", "target_state")
SELECTOR_KEYS = ("required", "preferred")
SELECTOR_EXAMPLE = "{required: {region: eu}, preferred: {disk: ssd}}"
REQUIRED_KEYS = ("name", "connector", "sink")


@dataclass(frozen=True, slots=True)
class Declaration:
    """One feed as declared, and where."""

    spec: FeedSpec
    where: str
    """Such as ``feeds.yaml:12``."""
    says_target: bool
    """Whether ``target_state`` was given; if not, a feed that is there already keeps its own."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a manifest."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest declares, and all that is wrong with it."""

    declarations: tuple[Declaration, ...]
    problems: tuple[Problem, ...]


def parse(text: str, *, origin: str) -> Manifest:
    """Read a manifest; ``origin`` names it in positions, usually its path."""
    reader = _Reader(origin)
    try:
        for document in documents.read(text, items="feeds"):
            reader.read(document)
    except Unreadable as stop:
        reader.complain(stop.line, str(stop))
    return Manifest(tuple(reader.declarations), tuple(reader.problems))


def parse_specs(text: str, *, origin: str) -> list[FeedSpec]:
    """The feeds of a manifest that must be right. Raises `InvalidInput` with every problem."""
    manifest = join([parse(text, origin=origin)])
    if manifest.problems:
        raise InvalidInput("\n".join(map(str, manifest.problems)))
    return [declaration.spec for declaration in manifest.declarations]


def join(manifests: Sequence[Manifest]) -> Manifest:
    """Several manifests as one; a feed declared twice is a problem."""
    first: dict[str, str] = {}
    declarations: list[Declaration] = []
    problems = [problem for manifest in manifests for problem in manifest.problems]
    for manifest in manifests:
        for declaration in manifest.declarations:
            name, where = declaration.spec.name, declaration.where
            if name in first:
                problems.append(Problem(where, f"feed {name!r} was declared before, at {first[name]}"))
            else:
                first[name] = where
                declarations.append(declaration)
    if len(declarations) > FEEDS_MAX:
        problems.append(Problem("manifest", f"{len(declarations)} feeds; at most {FEEDS_MAX} are allowed"))
    return Manifest(tuple(declarations), tuple(problems))


def dump(specs: Iterable[FeedSpec]) -> str:
    """A manifest that declares these feeds; reading it gives them back."""
    return documents.dump({"feeds": [plain(spec) for spec in specs]})


def plain(spec: FeedSpec) -> dict[str, Any]:
    """One feed as it stands in a manifest; what is at its default is left out."""
    keys: dict[str, Any] = {"name": spec.name}
    if spec.tenant:
        keys["tenant"] = spec.tenant
    keys |= {"connector": spec.connector, "source": dict(spec.source), "sink": dict(spec.sink)}
    if spec.labels:
        keys["labels"] = dict(spec.labels)
    chosen = {"required": dict(spec.selector.required), "preferred": dict(spec.selector.preferred)}
    if any(chosen.values()):
        keys["selector"] = {key: labels for key, labels in chosen.items() if labels}
    if spec.weight != 1.0:
        keys["weight"] = spec.weight
    return keys | {"target_state": spec.target_state.value}


# -- documents to declarations -----------------------------------------------------------------------


class _Reader:
    """Collects declarations and problems over the documents of one manifest."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.declarations: list[Declaration] = []
        self.problems: list[Problem] = []
        self._entries = 0

    def complain(self, line: int | None, what: str) -> None:
        self.problems.append(Problem(self.origin if line is None else f"{self.origin}:{line}", what))

    def read(self, document: Document) -> None:
        for key, line in document.keys.items():
            if key == "schedules":
                self.complain(line, "schedules are not supported yet in this release; remove the key")
            elif key not in TOP_KEYS and not key.startswith("x-"):
                known = ", ".join(TOP_KEYS)
                self.complain(line, f"unknown key {key!r}; known are {known} (and x-… for your own)")
        if "feeds" in document.keys and document.items is None:
            self.complain(document.keys["feeds"], "feeds: must be a list")
        for entry in document.items or ():
            self._entries += 1
            self._read_feed(entry)

    def _read_feed(self, entry: Entry) -> None:
        at = f"{self.origin}: feed {self._entries}" if entry.line is None else f"{self.origin}:{entry.line}"
        if not isinstance(entry.value, Mapping):
            self.problems.append(Problem(at, "a feed must be a mapping with name, connector and sink"))
            return
        name = entry.value.get("name")
        who = f"feed {name!r}: " if isinstance(name, str) else "feed: "
        wrong = list(_feed_problems(entry.value))
        for key, what in wrong:
            line = entry.key_lines.get(key)
            where = at if line is None else f"{self.origin}:{line}"
            self.problems.append(Problem(where, who + what))
        if not wrong:
            spec, says_target = _spec(entry.value), "target_state" in entry.value
            self.declarations.append(Declaration(spec, at, says_target))


def _feed_problems(feed: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """``(key, what is wrong)`` for everything about the shape of one feed."""
    for key in feed:
        if key not in FEED_KEYS:
            yield str(key), f"unknown key {key!r}; known are {', '.join(FEED_KEYS)}"
    for key in REQUIRED_KEYS:
        if feed.get(key) is None:
            yield key, f"{key}: is missing"
    for key in ("name", "connector", "tenant"):
        if feed.get(key) is not None and not isinstance(feed[key], str):
            yield key, f"{key}: must be a string; quote it"
    for key in ("source", "sink", "labels"):
        if feed.get(key) is not None and not isinstance(feed[key], Mapping):
            yield key, f"{key}: must be a mapping"
    for what in _selector_problems(feed.get("selector")):
        yield "selector", what
    weight = feed.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        yield "weight", "weight: must be a number"
    states = [state.value for state in TargetState]
    if feed.get("target_state", states[0]) not in states:
        yield "target_state", f"target_state: must be one of {', '.join(states)}"


def _selector_problems(selector: Any) -> Iterator[str]:
    if selector is None:
        return
    if not isinstance(selector, Mapping):
        yield f"selector: must be a mapping such as {SELECTOR_EXAMPLE}"
        return
    for key, labels in selector.items():
        if key not in SELECTOR_KEYS:
            # Most likely a label: what to do with a worker that lacks it has to be said.
            yield f"selector: unknown key {key!r}; write it as {SELECTOR_EXAMPLE}"
        elif labels is not None and not isinstance(labels, Mapping):
            yield f"selector.{key}: must be a mapping of labels, as in {SELECTOR_EXAMPLE}"


def _spec(feed: Mapping[str, Any]) -> FeedSpec:
    selector = feed.get("selector") or {}
    return FeedSpec(
        name=feed["name"],
        connector=feed["connector"],
        source=feed.get("source") or {},
        sink=feed["sink"],
        tenant=feed.get("tenant") or "",
        labels=feed.get("labels") or {},
        selector=Selector(required=selector.get("required") or {}, preferred=selector.get("preferred") or {}),
        weight=_as_float(feed.get("weight", 1.0)),
        target_state=TargetState(feed.get("target_state", TargetState.RUNNING)),
    )


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        # An integer beyond the range of floats; the declaration is refused for not being finite.
        return float("inf")
