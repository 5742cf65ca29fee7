"""Declarations of feeds: whether one can be right, and what tells two sets of them apart.

`problems` names everything that is wrong with one declaration, wherever it came from (a manifest, a
command, a web page). `plan` compares what is declared with what is there and says what to do; it is pure.

Nothing here connects anywhere: whether the source answers and the table exists shows once the feed runs,
or in `feedq doctor`. No message repeats the value of an option, because that may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite
from typing import Any

from feedq.connectors.base import parse_options
from feedq.errors import InvalidInput
from feedq.model import JSON, Feed, FeedSpec, Selector
from feedq.sinks.base import landing_of, parse_sink

NAME_MAX = 200
"""Characters of a feed's or tenant's name: it appears in log lines, tables and metric labels."""
OPTIONS_DEPTH_MAX = 32
"""Nesting of source and sink: deeper ones are mistakes, and recursion over them must stay cheap."""
OPTIONS_SIZE_MAX = 64 * 1024
"""Values and characters of source or sink, counted together: a declaration travels with every claim."""
INTEGER_BITS = 64
"""JSON of the control database is written and read with 64-bit integers."""

SECRET_OPTIONS = frozenset(
    (
        *("password", "passwd", "token", "nkey_seed", "credentials", "api_key"),
        *("authorization", "proxy-authorization", "cookie", "x-api-key"),
    )
)
"""Names of options, variables and headers that hold nothing but a secret, or one with a word before it."""

_NAME = re.compile(r"[^\s-]\S*")
_REFERENCE = re.compile(r"\$\{(?:env|file):")
_USER_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/@:]*:(?P<password>[^\s/@]+)@")
_QUERY_PASSWORD = re.compile(r"://\S*?[?&](?:password|passwd)=(?P<password>[^&\s]+)", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")


# -- one declaration ---------------------------------------------------------------------------------


def problems(spec: FeedSpec) -> list[str]:
    """Everything that is wrong with a declaration, one sentence each; empty when it may be stored."""
    found = [
        *_name_problems("name", spec.name, required=True),
        *_name_problems("tenant", spec.tenant, required=False),
        *_label_problems("labels", spec.labels),
        *_selector_problems(spec.selector),
    ]
    if not (isfinite(spec.weight) and spec.weight > 0):
        found.append("weight: must be a number greater than 0")
    not_json = [*_json_problems("source", spec.source), *_json_problems("sink", spec.sink)]
    if not not_json:
        found += _secret_problems(spec)
        found += _option_problems(spec)
    return found + not_json


def validate(spec: FeedSpec) -> None:
    """Raises `InvalidInput` with all that is wrong, naming feed and options."""
    found = problems(spec)
    if found:
        raise InvalidInput(f"feed {spec.name!r}: {'; '.join(found)}")


def _name_problems(option: str, name: str, *, required: bool) -> Iterator[str]:
    if not name:
        if required:
            yield f"{option}: must not be empty"
    elif len(name) > NAME_MAX:
        yield f"{option}: has {len(name)} characters; at most {NAME_MAX} are allowed"
    elif not (_NAME.fullmatch(name) and name.isprintable()):
        yield f"{option}: must be printable, without spaces, and must not begin with '-'"


def _label_problems(option: str, labels: Mapping[str, Any]) -> Iterator[str]:
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):
            yield f"{option}.{key}: must be a string; quote it"
        else:
            yield from _text_problems(f"{option}.{key}", key + value)


def _selector_problems(selector: Selector) -> Iterator[str]:
    yield from _label_problems("selector.required", selector.required)
    yield from _label_problems("selector.preferred", selector.preferred)
    for key, value in selector.preferred.items():
        if selector.required.get(key, value) != value:
            yield (
                f"selector.preferred.{key}: is not what selector.required.{key} says, so that no worker "
                "can have both; leave one of them out"
            )


def _option_problems(spec: FeedSpec) -> Iterator[str]:
    options = sink = None
    try:
        options = parse_options(spec.connector, spec.source)
    except InvalidInput as error:
        yield str(error)
    try:
        sink = parse_sink(spec.sink)
    except InvalidInput as error:
        yield str(error)
    if options is not None and sink is not None:
        try:
            landing_of(sink, options)
        except InvalidInput as error:
            yield str(error)


def _secret_problems(spec: FeedSpec) -> Iterator[str]:
    """Secrets are references under source.secrets, which its connector checks, and nowhere else."""
    visible = {"source": {k: v for k, v in spec.source.items() if k != "secrets"}, "sink": spec.sink}
    for path, text in _strings(visible):
        if _REFERENCE.search(text):
            yield (
                f"{path}: ${{env:…}} and ${{file:…}} stand only under source.secrets; "
                "give the secret a name there and write {name} here"
            )
        if _holds_password(text):
            yield f"{path}: holds a password in a URL; {_instead(path)}"
        where, _, option = path.rpartition(".")
        is_secret = where.startswith("source") and option.lower() in SECRET_OPTIONS
        if is_secret and text and not _PLACEHOLDER.search(text):
            yield f"{path}: would be stored and shown as it stands; {_instead(path)}"


def _holds_password(text: str) -> bool:
    found = [*_USER_PASSWORD.finditer(text), *_QUERY_PASSWORD.finditer(text)]
    return any(not _PLACEHOLDER.fullmatch(match["password"]) for match in found)


def _instead(path: str) -> str:
    if path.startswith("sink"):
        return "name a sink, and set its URL as FEEDQ_SINKS__<NAME> on the workers"
    return "put it under source.secrets as a reference and write {name} in its place"


def _strings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _strings(inner, f"{path}.{index}")


def _json_problems(path: str, options: Any) -> Iterator[str]:
    """What the database could not store as JSON, or would have to be taken apart without end."""
    if not isinstance(options, Mapping):
        yield f"{path}: must be a mapping of options"
        return
    size = 0
    stack: list[tuple[str, Any, int]] = [(path, options, 0)]
    while stack:
        where, value, depth = stack.pop()
        size += 1
        if isinstance(value, Mapping):
            size += sum(len(str(key)) for key in value)
            for key, inner in value.items():
                yield from _key_problems(where, key)
                stack.append((f"{where}.{key}", inner, depth + 1))
        elif isinstance(value, list | tuple):
            stack.extend((f"{where}.{index}", inner, depth + 1) for index, inner in enumerate(value))
        elif isinstance(value, str):
            size += len(value)
            yield from _text_problems(where, value)
        else:
            yield from _scalar_problems(where, value)
        if depth > OPTIONS_DEPTH_MAX:
            yield f"{path}: nested more than {OPTIONS_DEPTH_MAX} deep"
            return
        if size > OPTIONS_SIZE_MAX:
            yield f"{path}: too large; at most {OPTIONS_SIZE_MAX} values and characters are allowed"
            return


def _key_problems(where: str, key: Any) -> Iterator[str]:
    if not isinstance(key, str):
        yield f"{where}: the key {key!r} must be a string; quote it"
    else:
        yield from _text_problems(f"{where}.{key}", key)


def _text_problems(where: str, text: str) -> Iterator[str]:
    if "\0" in text:
        yield f"{where!a}: must not contain the NUL character; PostgreSQL cannot store it"
    try:
        text.encode()
    except UnicodeEncodeError:
        yield f"{where!a}: contains half of a surrogate pair, which is no Unicode text"


def _scalar_problems(where: str, value: Any) -> Iterator[str]:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int):
        if value.bit_length() >= INTEGER_BITS:
            yield f"{where}: is an integer beyond {INTEGER_BITS} bits; write it as a string"
    elif isinstance(value, float):
        if not isfinite(value):
            yield f"{where}: must be a finite number"
    else:
        yield f"{where}: {type(value).__name__} is not a JSON value; quote it"


# -- two sets of declarations ------------------------------------------------------------------------


class Action(StrEnum):
    """What `feedq apply` does with one feed."""

    ADD = "add"
    CHANGE = "change"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class OptionChange:
    """One option before and after; `ABSENT` stands for an option that is not given."""

    option: str
    before: JSON
    after: JSON


ABSENT = "(unset)"


@dataclass(frozen=True, slots=True)
class Change:
    """One feed that is not as declared."""

    action: Action
    name: str
    spec: FeedSpec | None = None
    """What to declare; None for a removal."""
    options: tuple[OptionChange, ...] = ()


@dataclass(frozen=True, slots=True)
class DeclarationChanges:
    """What makes the feeds as declared: additions, changes and removals, each by name."""

    changes: tuple[Change, ...]
    unchanged: int

    def count(self, action: Action) -> int:
        return sum(change.action is action for change in self.changes)


def plan(
    declared: Iterable[FeedSpec],
    existing: Sequence[Feed],
    *,
    keep_target: Collection[str] = (),
    prune: bool = False,
    tenant: str | None = None,
) -> DeclarationChanges:
    """What to do so that the feeds are as declared.

    The feeds named in ``keep_target`` do not say whether they should run: one that a person paused stays
    paused. ``prune`` removes what is not declared, of one ``tenant`` only if that is given.
    """
    there = {feed.name: feed.spec for feed in existing if feed.removed_at is None}
    changes: list[Change] = []
    unchanged = 0
    names: set[str] = set()
    for spec in declared:
        names.add(spec.name)
        before = there.get(spec.name)
        if before is None:
            changes.append(Change(Action.ADD, spec.name, spec))
            continue
        if spec.name in keep_target:
            spec = replace(spec, target_state=before.target_state)
        options = difference(before, spec)
        if options:
            changes.append(Change(Action.CHANGE, spec.name, spec, options))
        else:
            unchanged += 1
    if prune:
        surplus = sorted(n for n, s in there.items() if n not in names and tenant in (None, s.tenant))
        changes += [Change(Action.REMOVE, name) for name in surplus]
    return DeclarationChanges(tuple(changes), unchanged)


def difference(before: FeedSpec, after: FeedSpec) -> tuple[OptionChange, ...]:
    """The options that differ, by dotted name such as ``source.url``; a list counts as one value."""
    old, new = _leaves(before), _leaves(after)
    return tuple(
        OptionChange(".".join(path), old.get(path, ABSENT), new.get(path, ABSENT))
        for path in sorted(old.keys() | new.keys())
        if path not in old or path not in new or not _same(old[path], new[path])
    )


_Path = tuple[str, ...]


def _leaves(spec: FeedSpec) -> dict[_Path, JSON]:
    """A declaration, its name left out, as values under paths; an empty mapping is like none."""
    return {
        ("connector",): spec.connector,
        ("tenant",): spec.tenant,
        ("weight",): float(spec.weight),
        ("target_state",): spec.target_state.value,
        **_leaves_below(("source",), spec.source),
        **_leaves_below(("sink",), spec.sink),
        **_leaves_below(("labels",), spec.labels),
        **_leaves_below(("selector", "required"), spec.selector.required),
        **_leaves_below(("selector", "preferred"), spec.selector.preferred),
    }


def _leaves_below(path: _Path, value: Any) -> dict[_Path, JSON]:
    if not isinstance(value, Mapping):
        return {path: list(value) if isinstance(value, tuple) else value}
    leaves: dict[_Path, JSON] = {}
    for key, inner in value.items():
        leaves |= _leaves_below((*path, key), inner)
    return leaves


def _same(one: JSON, other: JSON) -> bool:
    # 1 == True in Python, yet they are different options.
    return one == other and isinstance(one, bool) == isinstance(other, bool)
