"""Values as people declare them: what each may be, and in which words it is refused.

A declaration is a pydantic model whose base is `Entry` and whose fields are of the types here. `read` gives the
model, or everything that is wrong with what was given, in sentences that name the key. A type also says what JSON
Schema can say of it, for editors. No message repeats a value that may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from math import isfinite
from sys import float_info
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    SerializationInfo,
    Strict,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, core_schema

from feedq.errors import InvalidInput

EVERY_OTHER = "*"
"""In a table by tenant or host: every one that has no line of its own. Feeds without a tenant are not meant."""
NONE = "none"
"""Says that there is no limit, where leaving a key out would mean a usual one."""
NAME_MAX = 200
"""Characters of a name, a tenant or a label: it appears in log lines, tables and metric labels."""
JSON_DEPTH_MAX = 32
"""Nesting of options and arguments: deeper ones are mistakes, and recursion over them must stay cheap."""
JSON_SIZE_MAX = 64 * 1024
"""Values and characters of options or arguments, counted together: a copy travels with every claim and run."""
INTEGER_BITS = 64
"""Sinks and programs that read what is declared may know no larger integers."""
SAID_CHARS_MAX = 2_000
"""Longer texts from outside are cut: a source's error page or a traceback must not fill a table."""
PATH_MAX = 200
"""Characters of the path to a value, from where on it is cut: keys may be as long as they like, and thousands of
values be wrong."""
DURATION_MAX_S = 10 * 366 * 86_400.0
"""Ten years."""

Problem = tuple[str, str]
"""The key that is wrong, of the outermost mapping; and a sentence that names the whole path and says what is."""
Kind = TypeVar("Kind", bound="Entry")
Value = TypeVar("Value")

_WORDS = {
    "missing": "is missing",
    "string_type": "must be a string; quote it",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "mapping_type": "must be a mapping",
    "is_instance_of": "must be a list",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "unexpected_keyword_argument": "is not known",
    "extra_forbidden": "is not known",
}
"""What pydantic finds, said as feedq says it."""


# -- declarations --------------------------------------------------------------------------------------


class Wrong(ValueError):
    """The problems below one value: paths from there, and what is wrong with each."""

    def __init__(self, found: list[tuple[str, str]]) -> None:
        super().__init__(found)
        self.found = found


class StrictModel(BaseModel):
    """What people write. Unknown keys are refused by name.

    Its validator is built when it first validates something: most commands and workers use few of all models.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)


class Entry(StrictModel):
    """A mapping that people declare, in which null is like nothing."""

    noun: ClassVar[str] = ""
    """What is declared, for messages."""
    shorthand: ClassVar[str] = ""
    """The key that any other value than a mapping stands for."""
    example: ClassVar[str] = ""
    """Shown where something else was given than a mapping with the keys that there are."""

    @model_validator(mode="before")
    @classmethod
    def _as_mapping(cls, given: Any) -> Any:
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            if not cls.shorthand:
                raise ValueError("must be a mapping" + (f" such as {cls.example}" if cls.example else ""))
            given = {cls.shorthand: given}
        return {str(key): value for key, value in given.items() if value is not None}

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        """What is wrong with keys beside one another, whatever each of them says."""
        return iter(())

    def completed(self, before: Self | None) -> Self:
        """What is declared by this, with what it does not say as it is in ``before``, if that is there already."""
        return self

    @classmethod
    def unknown(cls, key: str) -> str:
        hint = f"write it as {cls.example}" if cls.example else f"known are {', '.join(cls.model_fields)}"
        return f"unknown key {key!r}; {hint}{did_you_mean(key, cls.model_fields)}"

    @classmethod
    def valid(cls, given: Mapping[str, Any]) -> Self:
        """What was declared. Raises `InvalidInput` with all that is wrong."""
        found = read(cls, given)
        if isinstance(found, list):
            raise InvalidInput(f"{cls.noun} {given.get('name')!r}: {'; '.join(what for _, what in found)}")
        return found

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> Self:
        """Make an entry of these values, which are right and not checked; a mapping stands for an entry below."""
        below = {
            key: kind.of(keys[key]) for key, kind in entries_below(cls) if isinstance(keys.get(key), Mapping)
        }
        # As pydantic's own `model_construct`, which takes ten times as long: a list of feeds is made of these.
        entry = cls.__new__(cls)
        set_on = object.__setattr__
        set_on(entry, "__dict__", {**_defaults(cls), **keys, **below})
        set_on(entry, "__pydantic_fields_set__", set(keys))
        set_on(entry, "__pydantic_extra__", None)
        set_on(entry, "__pydantic_private__", None)
        return entry

    def plain(self) -> dict[str, Any]:
        """Write it as it stands in a manifest; what is at its default is left out."""
        return self.model_dump(exclude_defaults=True, warnings=False)

    def to_json(self) -> str:
        """Write it as the database holds it: as in a manifest, but with durations as numbers of seconds. An option
        of a later release has its default in what was stored before."""
        return self.model_dump_json(exclude_defaults=True, warnings=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` has written. Raises `InvalidInput` when a later release has written it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise InvalidInput("; ".join(what for _, what in _explained(cls, error))) from None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Ends a sentence about a word that is not known, if it is nearly one that is."""
    near = get_close_matches(word[:NAME_MAX], list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


@lru_cache(maxsize=100)
def _defaults(kind: type[BaseModel]) -> dict[str, Any]:
    return {key: field.default for key, field in kind.model_fields.items()}


@lru_cache(maxsize=100)
def entries_below(kind: type[BaseModel]) -> list[tuple[str, type[Entry]]]:
    """The keys of a model that are entries themselves."""
    kinds = ((key, field.annotation) for key, field in kind.model_fields.items())
    return [(key, one) for key, one in kinds if isinstance(one, type) and issubclass(one, Entry)]


def read(kind: type[Kind], given: Mapping[Any, Any]) -> Kind | list[Problem]:
    """What was declared; or all that is wrong with it."""
    found = read_each(kind, given)
    conflicts = list(kind.conflicts({key: value for key, value in given.items() if value is not None}))
    return found + conflicts if isinstance(found, list) else conflicts or found


def read_each(kind: type[Kind], given: Mapping[Any, Any]) -> Kind | list[Problem]:
    """Reads what was declared with each key seen by itself."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        return list(_explained(kind, error))


def _explained(kind: type[Entry], error: ValidationError) -> Iterator[Problem]:
    for one in error.errors(include_input=False, include_url=False):
        # The places within a list are left out: a list of one is as good as the one.
        keys = [key for key in one["loc"] if isinstance(key, str)]
        path, key = ".".join(keys), keys[0] if keys else ""
        cause = one.get("ctx", {}).get("error")
        if one["type"] == "extra_forbidden":
            below = ".".join(keys[:-1])
            entry = cast("type[Entry]", model_at(kind, keys[:-1]))
            yield key, (f"{below}: " if below else "") + entry.unknown(keys[-1])
        elif isinstance(cause, Wrong):
            for inner, what in cause.found:
                yield key, f"{shown_path(path, inner)}: {what}"
        else:
            what = explained_type(one) if cause is None else str(cause)
            yield key, f"{path}: {what}" if path else what


def explained_type(error: ErrorDetails) -> str:
    """What is wrong with a value that is of another type."""
    if error["type"] == "enum":
        return f"must be one of {error['ctx']['expected'].replace(' or ', ', ').replace(chr(39), '')}"
    if error["type"].startswith("datetime"):
        return "must be a time such as 2026-11-22T10:00:00Z"
    return _WORDS.get(error["type"], error["msg"])


def model_at(kind: type[BaseModel], path: Iterable[object]) -> type[BaseModel] | None:
    """The model that is the type of a value at this path, if it is one."""
    found: type[BaseModel] | None = kind
    for name in path:
        field = found.model_fields.get(str(name)) if found is not None else None
        kinds = (field.annotation, *get_args(field.annotation)) if field is not None else ()
        found = next((one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)), None)
    return found


def shown_path(*parts: str) -> str:
    path = ".".join(part for part in parts if part)[:PATH_MAX]
    return path if path.isprintable() else ascii(path)


# -- words and names -----------------------------------------------------------------------------------

Text = Annotated[str, Strict()]
Flag = Annotated[bool, Strict()]
Word = Annotated[Value, PlainSerializer(lambda word: word.value)]
"""One of an enumeration: written as plain text, for which the writer of YAML takes no enumeration."""


def check_name(name: str) -> str:
    """Raises ValueError with what is wrong with the name of something."""
    if not name:
        raise ValueError("must not be empty")
    if len(name) > NAME_MAX:
        raise ValueError(f"has {len(name)} characters; at most {NAME_MAX} are allowed")
    if name.startswith("-") or " " in name or not name.isprintable():
        raise ValueError("must be printable, without spaces, and must not begin with '-'")
    return name


_NAME_SCHEMA = {"type": "string", "minLength": 1, "maxLength": NAME_MAX, "pattern": r"^[^\s-]\S*$"}
Name = Annotated[Text, AfterValidator(check_name), WithJsonSchema(_NAME_SCHEMA)]


def _read_labels(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise ValueError("must be a mapping of labels")
    wrong = []
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            wrong.append((str(key), "must be a string; quote it"))
        elif what := text_problem(key + value):
            wrong.append((key, what))
    if wrong:
        raise Wrong(wrong)
    return dict(given)


Labels = Annotated[
    Mapping[str, str],
    PlainValidator(_read_labels),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]


@dataclass(frozen=True, slots=True)
class Listed:
    """A list, or the one value that would be all of it."""

    most: int
    noun: str = "entries"
    or_none: bool = False
    """``none`` is an empty list."""
    as_one: bool = False
    """A list of one is written as the one."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        write = core_schema.wrap_serializer_function_ser_schema(self._written)
        return core_schema.no_info_before_validator_function(
            self._items, handler(source), serialization=write
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        several: dict[str, Any] = handler(schema["schema"])
        return {"anyOf": [several["items"], several | {"maxItems": self.most}]}

    def _items(self, given: Any) -> Any:
        if self.or_none and given == NONE:
            return ()
        items = given if isinstance(given, list | tuple) else [given]
        if not items:
            raise ValueError("must not be empty")
        if len(items) > self.most:
            raise ValueError(f"has {len(items)} {self.noun}; at most {self.most} are allowed")
        return items

    def _written(self, given: Any, handler: Callable[[Any], Any]) -> Any:
        items = list(handler(given))
        return items[0] if self.as_one and len(items) == 1 else items


# -- numbers and durations -----------------------------------------------------------------------------

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+|\d+(?:\.\d+)?", re.ASCII)
_UNSTORABLE = re.compile("[\\0\ud800-\udfff]")
"""What a text of Python may have and one of PostgreSQL may not: NUL, and halves of surrogate pairs."""
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", re.ASCII)
_UNITS_S = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "": 1.0}


@dataclass(frozen=True, slots=True)
class Number:
    """A number within bounds, both included: a whole one where the type is `int`."""

    low: float
    high: float = float_info.max
    or_none: bool = False
    """``none``, and what is like nothing, are no limit."""
    over: bool = False
    """The lower bound itself is out of them."""

    words: ClassVar[str] = "a number"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        is_whole = source is int or int in get_args(source)
        write = core_schema.plain_serializer_function_ser_schema(self._serialized, info_arg=True)
        read = self._whole if is_whole else self._number
        return core_schema.no_info_plain_validator_function(
            read, serialization=write, metadata={"whole": is_whole}
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        kind = "integer" if schema["metadata"]["whole"] else "number"
        low = "exclusiveMinimum" if self.over else "minimum"
        high = {"maximum": self.high} if self.high < float_info.max else {}
        return self._or_none({"type": kind, low: self.low} | high)

    def _or_none(self, *schemas: dict[str, Any]) -> dict[str, Any]:
        found = [*schemas, *([{"const": NONE}] if self.or_none else [])]
        return {"anyOf": found} if len(found) > 1 else found[0]

    def _whole(self, given: Any) -> int | None:
        if self.or_none and given in (None, NONE):
            return None
        if isinstance(given, bool) or not isinstance(given, int) or not self._holds(given):
            raise ValueError(f"must be a whole number {self._bounds}")
        return given

    def _number(self, given: Any) -> float | None:
        if self.or_none and given in (None, NONE):
            return None
        if isinstance(given, bool) or not isinstance(given, int | float) or not self._holds(given):
            raise ValueError(f"must be {self.words} {self._bounds}")
        return float(given)

    def _holds(self, number: float) -> bool:
        # What is no number at all (NaN) is out of bounds, too.
        return self.low <= number <= self.high and not (self.over and number == self.low)

    @property
    def _bounds(self) -> str:
        low = f"greater than {self.low:.10g}" if self.over else f"from {self.low:.10g}"
        high = (
            f" {'and at most' if self.over else 'to'} {self.high:.10g}" if self.high < float_info.max else ""
        )
        return low + high + (f", or {NONE}" if self.or_none else "")

    def _serialized(self, value: float | None, info: SerializationInfo) -> Any:
        # The database compares numbers; people read durations.
        return value if value is not None and info.mode_is_json() else self.written(value)

    def written(self, value: float | None) -> Any:
        return NONE if value is None else value


@dataclass(frozen=True, slots=True)
class Seconds(Number):
    """A duration within bounds: a number of seconds, or text such as ``1m30s``."""

    low: float = 0.0
    high: float = DURATION_MAX_S

    words: ClassVar[str] = "a number of seconds"

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        number = {"type": "number", "minimum": self.low, "maximum": self.high}
        return self._or_none(number, {"type": "string", "pattern": f"^(?:{_DURATION.pattern})$"})

    def _number(self, given: Any) -> float | None:
        if isinstance(given, str) and not (self.or_none and given == NONE):
            given = parse_duration(given)
        elif isinstance(given, bool) or not isinstance(given, int | float | str):
            raise ValueError("must be a duration such as 30s, 5m, 2h or 1d, or a number of seconds")
        elif not isinstance(given, str) and given < 0:
            raise ValueError(f"{given} is negative; a duration must be positive")
        return Number._number(self, given)

    def written(self, value: float | None) -> Any:
        return NONE if value is None else exact_duration(value)


def parse_duration(text: str) -> float:
    """``90``, ``90s``, ``1m30s``, ``2h``, ``1d`` in seconds. Raises `ValueError` with what is wrong."""
    if _DURATION.fullmatch(text.removeprefix("-")) and text.startswith("-"):
        raise ValueError(
            f"{text!r} is negative; a duration must be positive, such as 90s, 2m, 1m30s, 1h or 1d"
        )
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration; write it as 90s, 2m, 1m30s, 1h or 1d")
    return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))


def exact_duration(seconds: float) -> str | float:
    """A duration as `parse_duration` reads it; where that would not be exactly the same, the number."""
    if seconds != seconds // 1 or not 0 < seconds < 2**53:
        return seconds
    rest, text = int(seconds), ""
    for unit, divisor in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, divisor)
        text += f"{count}{unit}" if count else ""
    return text


# -- JSON ----------------------------------------------------------------------------------------------

Leaf = Callable[[tuple[Any, ...], Any], str | None]
"""What is wrong with a value that is not a mapping or list, given the keys that lead to it."""


def json_problems(value: Any, leaf: Leaf = lambda keys, value: None) -> Iterator[tuple[str, str]]:
    """What the database could not store as JSON, or would have to be taken apart without end: by path."""
    size = 1
    stack: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while stack:
        keys, value = stack.pop()
        is_plain = value is None or isinstance(value, str | int | float)
        is_mapping = not is_plain and isinstance(value, Mapping)  # which takes as long as all else here
        if is_mapping or isinstance(value, str | list | tuple):
            size += len(value)
        if is_mapping:
            size += sum(len(key) for key in value if isinstance(key, str))
        if len(keys) > JSON_DEPTH_MAX:
            yield "", f"nested more than {JSON_DEPTH_MAX} deep"
            return
        if size > JSON_SIZE_MAX:
            yield "", f"too large; at most {JSON_SIZE_MAX} values and characters are allowed"
            return
        if is_mapping:
            for key, inner in value.items():
                if not isinstance(key, str):
                    yield shown_path(*map(str, keys)), f"the key {key!r} must be a string; quote it"
                elif what := text_problem(key):
                    yield shown_path(*map(str, keys), key), what
                stack.append(((*keys, key), inner))
        elif isinstance(value, list | tuple):
            stack.extend(((*keys, number), inner) for number, inner in enumerate(value))
        elif what := _scalar_problem(value) or leaf(keys, value):
            yield shown_path(*map(str, keys)), what


def text_problem(text: str) -> str | None:
    if "\0" in text:
        return "must not contain the NUL character; PostgreSQL cannot store it"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains half of a surrogate pair, which is not Unicode text"
    return None


def storable(said: str, chars_max: int = SAID_CHARS_MAX) -> str:
    """A text that nobody here chose, made fit for a column: what cannot be stored is replaced, the rest is cut.

    Errors come from sources, from jobs and from the code of connectors. One statement carries the reports of many
    feeds and runs, and a text of one of them must not fail it. What people type is refused instead
    (`text_problem`): a name must not turn into another one.
    """
    return _UNSTORABLE.sub("\ufffd", said)[:chars_max]


def _scalar_problem(value: Any) -> str | None:
    match value:
        case None | bool():
            return None
        case str():
            return text_problem(value)
        case int():
            is_short = value.bit_length() < INTEGER_BITS
            return None if is_short else f"is an integer beyond {INTEGER_BITS} bits; write it as a string"
        case float():
            return None if isfinite(value) else "must be a finite number"
    return f"{type(value).__name__} is not a JSON value; quote it"
