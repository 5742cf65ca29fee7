"""The registry of verbs: each thing that people and programs can ask of feedq is one function.

A verb takes an `At` and keyword-only arguments with plain types, and returns a dataclass::

    @verb("GET /feeds/{name}")
    def show_feed(at: At, *, name: str) -> FeedDocument: ...

The commands call verbs through `feedq.cli`, programs through the HTTP API, and people through the pages in Flower.
All three come through `Verb.call`, which is where roles are checked; so no face can forget a verb, or a role.

A verb knows nothing of its faces: no click, no HTTP, no HTML. It raises the errors of `feedq.errors`.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    TypeAlias,
    TypeVar,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from feedq.core.json_texts import read_json
from feedq.core.model import ChosenFeed, Feed, Version, require_version
from feedq.core.moments import YEARS
from feedq.core.roles import AccessRole, Caller
from feedq.core.selection import Selection
from feedq.core.values import NAME_MAX, Entry, did_you_mean, shown_path
from feedq.errors import Forbidden, InvalidInput, NotFound

if TYPE_CHECKING:
    from feedq.control.store.postgresql import PostgresStore
    from feedq.settings import Settings
    from feedq.sinks.base import Sink

P = ParamSpec("P")
T = TypeVar("T")
OpenSink: TypeAlias = "Callable[[str], AbstractContextManager[Sink]]"
"""Opens a session with a named sink. Raises `InvalidInput` when it is not set up here."""
Told = Callable[[int, int | None], object]
"""Called with how many are done so far, and of how many; None where the total is not known."""

# What both ends of the HTTP API agree on.
PREFIX: Final = "/api/v1"
JSON_TYPE: Final = "application/json"
STREAM_TYPE: Final = "text/event-stream"
PROGRESS: Final = "progress"
ANSWER: Final = "answer"
PROBLEM: Final = "problem"
"""The kinds of the events of a stream; a problem ends it with an error."""

CHOSEN_MAX: Final = 20_000
"""Feeds that one call may act on: more would hold a request for minutes."""
PAGE_MAX: Final = 500
TEXT_MAX: Final = 1_000
MODULES: Final = (
    *("feeds", "declarations", "cursors", "backfills", "landing"),
    *("schedules", "fleet", "json_schema", "catalogs.syncing"),
)
"""The modules of `feedq.verbs` that hold verbs."""

EMPTY: Final = "Expected `str` of length >= 1"
"""What msgspec says of a name without a character."""
_ETAG = re.compile(r"(\d{1,18})\.(\d{1,9})")

Expected = (
    Annotated[
        str,
        Meta(
            max_length=100, description="The ETag of what is to be changed: refused if it has changed since."
        ),
    ]
    | None
)
NameArgument = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
Names = Annotated[tuple[NameArgument, ...], Meta(max_length=CHOSEN_MAX)]
Moment = Annotated[datetime, Meta(tz=True)]
TimeText = Annotated[str, Meta(min_length=1, max_length=40)]
Past = Annotated[
    TimeText,
    Meta(
        description="A time, such as 2026-12-01T08:00Z, in UTC unless it says otherwise, or how long ago: 90m."
    ),
]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX, description="Maximum number of items.")]
Cursor = (
    Annotated[
        str,
        Meta(max_length=2_000, description="`next` of the page before; leave it out for the first."),
    ]
    | None
)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a list; ``next`` asks for the one after it, and is null on the last."""

    items: list[T]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong (RFC 9457). ``error``, by which programs tell errors apart, is a class of `feedq.errors`."""

    title: str
    status: int
    detail: str
    error: str
    type: str = "about:blank"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a verb."""

    done: int
    total: int | None


def etag_of(version: Version) -> str:
    """The ETag of a version, without its quotes."""
    return f"{version[0]}.{version[1]}"


def version_of(etag: str | None) -> Version | None:
    """The version that an ETag stands for; None for any. Raises `InvalidInput`."""
    if etag is None or etag == "*":
        return None
    found = _ETAG.fullmatch(etag.removeprefix("W/").strip('"'))
    if found is None:
        raise InvalidInput("expected: is not the ETag of a declaration; give the one from an answer, or *")
    return int(found[1]), int(found[2])


def page_of(found: Sequence[T], limit: int, place: Callable[[T], Sequence[str | int]]) -> Page[T]:
    """A page of what was found. One more than ``limit`` was asked for, to know whether there is another page."""
    shown = list(found[:limit])
    if len(found) <= limit:
        return Page(shown)
    return Page(shown, base64.urlsafe_b64encode(msgspec.json.encode(place(shown[-1]))).decode().rstrip("="))


def page_place(cursor: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """The place behind which a page begins; None for the first. Raises `InvalidInput`."""
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found = read_json(base64.b64decode(padded, b"-_", validate=True))
    except (ValueError, binascii.Error):
        found = None
    if not isinstance(found, list) or [type(one) for one in found] != list(kinds):
        raise InvalidInput(
            "cursor: does not belong to this list; give `next` from the page before, or leave it out"
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class At:
    """Where a verb acts, and for whom."""

    store: PostgresStore
    settings: Settings
    caller: Caller
    open_sink: OpenSink
    told: Told = lambda done, total: None

    def feed(self, name: str) -> Feed:
        """The feed of that name, even while it is being removed. Raises `NotFound`, and for another tenant's feed
        the same error, caused by `Forbidden`."""
        found = self.store.feeds.get(name)
        if not self.caller.sees(found.spec.tenant):
            from feedq.control.store.feeds import no_feed  # loads SQLAlchemy, which a command may do without

            raise no_feed(name) from Forbidden(f"feed {name!r} is another tenant's")
        return found

    def own_feed(self, name: str, expected: str | None = None) -> Feed:
        """The feed of that name, to change it. Raises `NotFound`, `Forbidden` for another tenant's, and `Outdated`
        unless it is of the version that the ETag ``expected`` says."""
        found = self.store.feeds.get(name)
        if found.removed_at is not None:
            raise NotFound(f"feed {name!r} is being removed")
        self.caller.require_tenant(found.spec.tenant, f"feed {name!r}")
        require_version(f"feed {name!r}", found.version, version_of(expected))
        return found

    def seen(self, select: Selection) -> Selection | None:
        """The same selection among the feeds that the caller sees; None when it asks for another tenant's."""
        own = self.caller.tenant
        if own is None:
            return select
        return replace(select, tenant=own) if select.tenant in (None, own) else None

    def chosen(self, select: Selection) -> list[ChosenFeed]:
        """The feeds of a selection that are the caller's to change.

        Raises `InvalidInput` (an empty selection, or too many feeds), `NotFound` (an unknown name), and
        `Forbidden` when a named feed or tenant is not the caller's.
        """
        if select.is_empty:
            raise InvalidInput("which feeds? name them, or choose them by tenant, match or another key")
        if select.tenant is not None:
            self.caller.require_tenant(select.tenant, f"a feed of tenant {select.tenant!r}")
        found = self.store.listing.chosen(select, limit=CHOSEN_MAX + 1)
        there = {feed.name: feed.tenant for feed in found}
        for name in select.names:
            tenant = there[name] if name in there else self.own_feed(name).spec.tenant
            self.caller.require_tenant(tenant, f"feed {name!r}")
        # Feeds of other tenants that match are skipped, as if they did not exist.
        found = [feed for feed in found if self.caller.sees(feed.tenant)]
        if len(found) > CHOSEN_MAX:
            raise InvalidInput(
                f"this selects more than {CHOSEN_MAX:,} feeds; do it in parts, for example by match"
            )
        return found


@dataclass(frozen=True, slots=True)
class Verb:
    """A registered verb: the function, and the facts from which its faces are made."""

    name: str
    method: str
    path: str
    """With ``{name}`` where an argument stands; percent-encoded there, slashes too."""
    role: AccessRole
    of_fleet: bool
    """Whether it needs a role over everything, because what it shows or changes belongs to no tenant."""
    function: Callable[..., Any]
    arguments: type[msgspec.Struct]
    answer: Any
    summary: str
    """The first sentence of the docstring."""
    description: str

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    @property
    def is_stream(self) -> bool:
        """Whether it answers with an iterator: a stream of events over HTTP."""
        return get_origin(self.answer) is Iterator

    @property
    def in_path(self) -> Sequence[str]:
        return re.findall(r"{(\w+)}", self.path)

    def parse(self, given: Mapping[str, Any]) -> msgspec.Struct:
        """The arguments as the verb takes them, whichever face they came from: numbers and flags may be texts.

        Raises `InvalidInput` that names the argument.
        """
        known = self.arguments.__struct_fields__
        check_names("", given, known)
        for name, kind in get_type_hints(self.arguments).items():
            if is_dataclass(kind) and isinstance(below := given.get(name), Mapping):
                check_names(f"{name}.", below, [field.name for field in fields(kind)])
        try:
            found = msgspec.convert(
                given,
                self.arguments,
                strict=False,
                str_keys=True,
                from_attributes=True,
                dec_hook=read_declaration,
            )
        except msgspec.ValidationError as error:
            raise InvalidInput(_in_words(error)) from None
        for name in known:
            _check_value(name, getattr(found, name))
        return found

    def require(self, caller: Caller) -> None:
        """Raises `Forbidden` unless the caller has the role; pages ask beforehand, to show what is refused."""
        caller.require(self.role)
        if self.of_fleet:
            caller.require_everything()

    def call(self, at: At, arguments: msgspec.Struct) -> Any:
        """Call the verb, if the caller may. Raises `Forbidden`, and what the verb raises."""
        self.require(at.caller)
        return self.function(at, **{name: getattr(arguments, name) for name in arguments.__struct_fields__})


VERBS: dict[str, Verb] = {}
"""All verbs by name; filled as their modules are loaded, see `load`."""
OF: dict[Callable[..., Any], Verb] = {}
"""The same by function."""


def verb(
    address: str, *, role: AccessRole = AccessRole.VIEWER, of_fleet: bool = False
) -> Callable[[Callable[Concatenate[At, P], T]], Callable[Concatenate[At, P], T]]:
    """Register a function as the verb at this address, ``METHOD /path/{argument}``."""
    method, path = address.split(" ")

    def register(function: Callable[Concatenate[At, P], T]) -> Callable[Concatenate[At, P], T]:
        name = function.__name__
        hints = get_type_hints(function, include_extras=True)
        fields = [
            (one.name, hints[one.name], *(() if one.default is one.empty else (one.default,)))
            for one in list(inspect.signature(function).parameters.values())[1:]
        ]
        arguments = msgspec.defstruct(
            name.title().replace("_", ""), fields, kw_only=True, frozen=True, module=function.__module__
        )
        description = inspect.getdoc(function) or ""
        summary, _, more = description.partition("\n\n")
        if name in VERBS:
            raise AssertionError(f"two verbs are named {name}")
        OF[function] = VERBS[name] = Verb(
            name,
            method,
            path,
            role,
            of_fleet,
            function,
            arguments,
            hints["return"],
            " ".join(summary.split()),
            more,
        )
        return function

    return register


def load() -> dict[str, Verb]:
    """All verbs by name, whichever of their modules were loaded before."""
    for module in MODULES:
        import_module(f"feedq.verbs.{module}")
    return VERBS


def query_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Plain arguments as a query string has them: a selection's keys stand beside the others.

    Flags that are not set and empty lists are left out.
    """
    found: dict[str, Any] = {}
    for name, value in {**arguments, **(arguments.get("select") or {})}.items():
        if name == "select" or value is False or value in (None, (), [], {}):
            continue
        if isinstance(value, Mapping):
            value = [f"{key}={one}" for key, one in value.items()]
        found[name] = "true" if value is True else value
    return found


# -- declarations in arguments and answers --------------------------------------------------------------


def read_declaration(kind: type, given: Any) -> Any:
    """Read a declaration for msgspec, which knows every other type. Raises `InvalidInput`."""
    if isinstance(given, kind):
        return given
    if not issubclass(kind, Entry):
        raise NotImplementedError(kind)
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{kind.noun}: must be a mapping with the keys of its declaration")
    return kind.valid(given)


def read_answered(kind: type, given: Any) -> Any:
    """Read a declaration in an answer, for msgspec: it was checked when it was declared."""
    if not issubclass(kind, Entry):
        raise NotImplementedError(kind)
    return kind.model_validate(given)


def encode(document: Any) -> bytes:
    """A document as JSON: the one encoder of commands, API and pages."""
    return msgspec.json.encode(document, enc_hook=write_declaration)


def write_declaration(given: Any) -> Any:
    """Write a declaration for msgspec: as it stands in a manifest."""
    if isinstance(given, Entry):
        return given.plain()
    raise NotImplementedError(type(given))


def check_names(where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises `InvalidInput` for an unknown argument: ignored, it would hide a mistake."""
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"; known are: {', '.join(known) or 'none'}"
            raise InvalidInput(f"unknown argument {shown_path(where + name)!r}{hint}")


def _check_value(name: str, value: Any) -> None:
    """Raises `InvalidInput` for a value that PostgreSQL cannot hold."""
    if isinstance(value, datetime) and not YEARS[0] <= value < YEARS[1]:
        raise InvalidInput(f"{name}: must lie in the years 1970 to 2999")


def _in_words(error: msgspec.ValidationError) -> str:
    """msgspec says ``Expected `int`, got `str` - at `$.limit```; a person reads the name first."""
    said, at, place = str(error).partition(" - at `$")
    where = place.rstrip("`").lstrip(".")
    said = "must not be empty" if said == EMPTY else said[:1].lower() + said[1:]
    return f"{where}: {said}" if at and where else said
