"""Text as plain values with positions: a document of JSON, or one or several of YAML.

Read as data only: JSON's types and no other tags, no key twice, bounds on length, depth and number. Plain
words mean what they mean in JSON (`true`, `null`, `12`, `1.5`); `no`, `on` and `2026-01-01` are strings.
Reading ends at the first mistake, which `DocumentError` names with its line. What the documents mean is not
this module's business; `feedq.verbs.manifests` knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, NoReturn

import yaml

LENGTH_MAX = 32 * 2**20
"""Characters of one text."""
NODES_MAX = 2_000_000
"""Values of one document with its aliases written out: a few lines of aliases can stand for billions."""
DUMPED_AT_ONCE = 500
"""Items of a list that are made into text together."""
LINES_DEEP = 3
"""Keys and numbers that lead to what has its line kept: to a key of one feed."""
DEPTH_MAX = 64
"""Nesting of a document: the YAML library recurses, and a crash of the process is not an error message."""


Place = tuple[str | int, ...]
"""The keys and numbers that lead to a value of a document: ``("feeds", 3, "source")``."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document as plain values, with the lines on which its keys, the items below them and their keys stand.

    JSON comes without lines.
    """

    value: Any
    lines: Mapping[Place, int] = field(default_factory=dict)


class DocumentError(Exception):
    """Reading a document cannot go on, for the reason in the message."""

    def __init__(self, line: int | None, what: str) -> None:
        super().__init__(what)
        self.line = line


def read(text: str) -> Iterator[Document]:
    """The documents of a text. Raises `DocumentError`."""
    if len(text) > LENGTH_MAX:
        raise DocumentError(None, f"has {len(text)} characters; at most {LENGTH_MAX} are allowed")
    body = text.removeprefix("\ufeff")
    if body.lstrip()[:1] in ("{", "["):
        # JSON first: YAML reads most of it, but not tabs, nor characters escaped as surrogate pairs.
        with suppress(json.JSONDecodeError):  # it may be YAML in braces
            yield Document(_json(body))
            return
    yield from _yaml(body)


def read_value(text: str) -> Any:
    """One value as a line of a command has it. Raises `DocumentError`.

    What begins with a brace, a bracket or a quote is YAML. A plain word or number means what it means there, and
    any other text is itself: ``*/5 * * * *`` needs no quotes.
    """
    with _explained():
        if text[:1] in ("{", "[", '"', "'"):
            _check_depth(text)
            loader = _Loader(text)
            try:
                node = loader.get_single_node()
                _check_nodes(node)
                return loader.construct_document(node)
            finally:
                loader.dispose()
        plain = _Loader("")
        return plain.construct_document(
            yaml.ScalarNode(plain.resolve(yaml.ScalarNode, text, (True, False)), text)
        )


def dump(value: Any) -> str:
    """One YAML document that reads back as ``value``."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def dump_lists(lists: Mapping[str, Iterable[Any]]) -> Iterator[str]:
    """The same of a mapping of lists, in parts: each is read no further than it is written, and together the parts
    are what `dump` would give."""
    for key, items in lists.items():
        rest = iter(items)
        part = list(islice(rest, DUMPED_AT_ONCE))
        yield dump({key: part})
        while part := list(islice(rest, DUMPED_AT_ONCE)):
            yield dump(part)


# -- JSON --------------------------------------------------------------------------------------------


def _json(text: str) -> Any:
    """Raises `JSONDecodeError` for what is not JSON, and `DocumentError`."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise DocumentError(None, f"nested more than {DEPTH_MAX} deep") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DocumentError(None, f"the key {key!r} is given twice in one mapping")
        found[key] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise DocumentError(None, f"{name} is not a JSON value")


# -- YAML --------------------------------------------------------------------------------------------

_CORE_TYPES = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+", list("-+0123456789")),
    "float": (r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    "merge": (r"<<", ["<"]),
}
"""The plain words that are no strings. YAML 1.1, the library's own choice, makes `no` a boolean and
`2026-01-01` a date, which surprises people and is not JSON."""

_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in (*_CORE_TYPES, "str", "map", "seq")}

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where the wheel has it: thousands of feeds take a second instead of ten."""


class _Loader(_Base):  # type: ignore[misc]  # either of two classes, chosen when imported
    """Safe, and with JSON's types only."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


_DumperBase: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""As `_Base`."""


class _Dumper(_DumperBase):  # type: ignore[misc]  # as of `_Loader`
    """Quotes whatever `_Loader` would take for something else than a string."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # Other styles fold or lose characters such as U+0085, which counts as a line break in YAML 1.1.
    style: str | None = '"'
    if text.replace("\n", "").isprintable():
        # A literal that ends in empty lines would end the document too.
        style = "|" if "\n" in text and not text.endswith("\n\n") and text != "\n" else None
    node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", text, style)
    return node


_Dumper.add_representer(str, _represent_text)

for _kind, (_pattern, _first) in _CORE_TYPES.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_pattern})\Z"), _first)

_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node), 10))


@contextmanager
def _explained() -> Iterator[None]:
    """Raises `DocumentError` for whatever is wrong with YAML."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ": ".join(part for part in (error.context, error.problem) if part)
        raise DocumentError(None if mark is None else mark.line + 1, f"invalid YAML: {what}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise DocumentError(None, f"invalid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise DocumentError(None, "nested too deep through aliases") from None


def _yaml(text: str) -> Iterator[Document]:
    with _explained():
        _check_depth(text)
        loader = _Loader(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                _check_nodes(node)
                # First: making values of it writes out what is merged.
                lines: dict[Place, int] = {(): _line(node)}
                _note_lines(node, lines)
                if (value := loader.construct_document(node)) is not None:
                    yield Document(value, lines)
        finally:
            loader.dispose()


def _note_lines(node: yaml.Node, lines: dict[Place, int], place: Place = ()) -> None:
    below: list[tuple[str | int, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        below = [(key.value, key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        below = [(number, item, item) for number, item in enumerate(node.value)]
    for step, beginning, inner in below:
        there = (*place, step)
        lines[there] = beginning.start_mark.line + 1
        if len(there) < LINES_DEEP:
            _note_lines(inner, lines, there)


def _check_depth(text: str) -> None:
    """Before anything recurses over the document; the events come one by one."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                raise DocumentError(_line(event), f"nested more than {DEPTH_MAX} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_nodes(root: yaml.Node) -> None:
    """Refuse tags, odd keys, keys given twice, and aliases that go in circles or explode."""
    sizes: dict[int, int] = {}
    _weigh(root, sizes)
    if sizes[id(root)] > NODES_MAX:
        raise DocumentError(_line(root), f"more than {NODES_MAX} values with its aliases expanded")


def _weigh(node: yaml.Node, sizes: dict[int, int]) -> int:
    """How many values a node stands for, each alias counted anew."""
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise DocumentError(_line(node), "an alias stands for a value that contains it")
        return sizes[id(node)]
    if node.tag not in _TAGS:
        raise DocumentError(_line(node), f"the tag {node.tag!r} is not supported")
    sizes[id(node)] = 0
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        _check_keys(node)
        children = [value for _, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    sizes[id(node)] = 1 + sum(_weigh(child, sizes) for child in children)
    return sizes[id(node)]


def _check_keys(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        line = _line(key)
        if not isinstance(key, yaml.ScalarNode):
            raise DocumentError(line, "a key must be a string")
        if not key.tag.endswith((":str", ":merge")):
            raise DocumentError(line, f"the key {key.value!r} must be a string; quote it")
        if key.value in seen:
            raise DocumentError(line, f"the key {key.value!r} is given twice in one mapping")
        seen.add(key.value)


def _line(thing: Any) -> int:
    """The line of an event or a node, counted from 1."""
    return int(thing.start_mark.line) + 1
