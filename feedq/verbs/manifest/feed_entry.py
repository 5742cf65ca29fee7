"""Feeds as people declare them: their keys, what may be wrong with one, and the way back.

Nothing here connects anywhere: whether the source answers and the table exists shows once the feed runs, or in
`feedq doctor`. No message repeats the value of an option, because that may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from feedq.connectors.base import parse_options
from feedq.core.expectations import Expectation, read_expectations, write_expectations
from feedq.core.model import BACKFILL_SUFFIX, FeedSpec, Selector, StartCursor, TargetState
from feedq.core.values import (
    Entry,
    Labels,
    Name,
    Number,
    Problem,
    Text,
    Word,
    Wrong,
    check_name,
    json_problems,
    read,
)
from feedq.errors import InvalidInput
from feedq.sinks.base import parse_sink, target_of
from feedq.sinks.checkpoints import check_cursor
from feedq.sinks.event_time import event_time_finder

SECRET_OPTIONS = frozenset(
    (
        *("password", "passwd", "token", "nkey_seed", "credentials", "api_key"),
        *("authorization", "proxy-authorization", "cookie", "x-api-key"),
    )
)
"""Names of options, variables and headers that hold nothing but a secret, or one with a word before it."""

_REFERENCE = re.compile(r"\$\{(?:env|file):")
_USER_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/@:]*:(?P<password>[^\s/@]+)@")
_QUERY_PASSWORD = re.compile(r"://\S*?[?&](?:password|passwd)=(?P<password>[^&\s]+)", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")


# -- the keys ------------------------------------------------------------------------------------------


_SAME = (
    *("name", "tenant", "connector", "source", "sink", "labels", "weight", "target_state", "initial_cursor"),
    "expect",
)
"""Keys that are fields of a `FeedSpec` too, of the same name."""


def _read_options(given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError("must be a mapping of options")
    if wrong := list(json_problems(given)):
        raise Wrong(wrong)
    return given


def _read_resume(given: Any) -> StartCursor:
    is_resume = isinstance(given, Mapping) and "cursor" in given and given.keys() <= {"cursor", "records"}
    records = given.get("records", 0) if is_resume else -1
    if not isinstance(records, int) or isinstance(records, bool) or records < 0:
        raise ValueError("must be {cursor: …, records: 318}, as `feedq export --with-cursors` writes it")
    return StartCursor(given["cursor"], records)


Options = Annotated[Mapping[str, Any], PlainValidator(_read_options), WithJsonSchema({"type": "object"})]
Tenant = Annotated[Text, AfterValidator(lambda name: name and check_name(name))]
Resume = Annotated[
    Any,  # a StartCursor, whose cursor is of a type that pydantic would have to follow without end
    PlainValidator(_read_resume),
    PlainSerializer(lambda start: {"cursor": start.cursor, "records": start.records}),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {"cursor": {}, "records": {"type": "integer", "minimum": 0}},
            "required": ["cursor"],
            "additionalProperties": False,
        }
    ),
]


Cursor = Annotated[
    Any,  # for the reason above
    PlainValidator(lambda given: given),
    WithJsonSchema({}),
]
Expect = Annotated[
    Mapping[str, Any],
    PlainValidator(read_expectations),
    PlainSerializer(write_expectations),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {str(key): {} for key in Expectation},
            "additionalProperties": False,
        }
    ),
]


def _check_feed_name(name: str) -> str:
    if name.endswith(BACKFILL_SUFFIX):
        raise ValueError(f"must not end in {BACKFILL_SUFFIX}, which names the backfills of feeds")
    return name


FeedName = Annotated[Name, AfterValidator(_check_feed_name)]


class SelectorEntry(Entry):
    """Labels of workers. What becomes of a worker that lacks one has to be said."""

    example = "{required: {region: eu}, preferred: {disk: ssd}}"

    required: Labels = Field({})
    """Labels without which no worker gets it."""
    preferred: Labels = Field({})
    """Labels of the workers that should get it, as long as one has room."""


class FeedEntry(Entry):
    """A feed: a source, and where its records land."""

    noun = "feed"

    name: FeedName
    """Unique. Up to 200 printable characters without spaces; `tenant/feed` reads well."""
    tenant: Tenant = ""
    """Whom the feed belongs to."""
    connector: Text
    """Kind of source; `feedq connectors` lists them."""
    source: Options = Field({})
    """Options of the connector."""
    sink: Options
    """Where records land."""
    labels: Labels = Field({})
    """Strings of your own."""
    selector: SelectorEntry = SelectorEntry()
    """Which workers may have it, by their labels."""
    weight: Annotated[float, Number(0, over=True)] = 1.0
    """Load of the feed beside others."""
    target_state: Word[TargetState] | None = None
    """Whether it is to run, `running` unless it is given. Left out, a feed that is there already keeps its
    own."""
    initial_cursor: Cursor = None
    """Where it begins as long as nothing of it has landed, and after `feedq feed cursor rewind --to-start`;
    where its source begins unless it is given."""
    expect: Expect = Field({})
    """What is expected of it: `max_silence: 5m`, `min_rows: {per: 1h, rows: 1000}`, `max_event_lag:
    {at: /ts, seconds: 60}`, `max_refused: 1%`; `none` takes away what is expected of all, or of its tenant."""
    resume: Resume | None = None
    """Where a feed that is new begins: `cursor`, and `records` that have landed before. `feedq export
    --with-cursors` writes it; a feed that is there already keeps its own."""

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        selector = given.get("selector")
        chosen = selector if isinstance(selector, Mapping) else {}
        required, preferred = chosen.get("required"), chosen.get("preferred")
        if isinstance(required, Mapping) and isinstance(preferred, Mapping):
            for key, value in preferred.items():
                if required.get(key, value) != value:
                    yield (
                        "selector",
                        f"selector.preferred.{key}: is not what selector.required.{key} says, so that no worker "
                        "can have both; leave one of them out",
                    )

    @property
    def spec(self) -> FeedSpec:
        """What it declares."""
        keys = {name: getattr(self, name) for name in _SAME}
        keys |= {"target_state": self.target_state or TargetState.RUNNING}
        return FeedSpec(**keys, selector=Selector(self.selector.required, self.selector.preferred))


def feed_entry(spec: FeedSpec, resume: StartCursor | None = None) -> FeedEntry:
    """The entry that declares a feed."""
    selector = {"required": dict(spec.selector.required), "preferred": dict(spec.selector.preferred)}
    keys = {name: getattr(spec, name) for name in _SAME} | {"selector": selector, "resume": resume}
    return FeedEntry.of(keys)


def plain_feed(spec: FeedSpec, resume: StartCursor | None = None) -> dict[str, Any]:
    """One feed as it stands in a manifest; what is at its default is left out, but whether it runs."""
    return feed_entry(spec, resume).plain()


# -- what may be wrong ---------------------------------------------------------------------------------


def problems(spec: FeedSpec) -> list[str]:
    """Everything that is wrong with a declaration, one sentence each; empty when it may be stored."""
    found = read(FeedEntry, plain_feed(spec))
    wrong = found if isinstance(found, list) else []
    # Of options that are no JSON nothing else can be said.
    are_json = not {key for key, _ in wrong} & {"source", "sink"}
    return [what for _, what in wrong] + (option_problems(spec) if are_json else [])


def validate(spec: FeedSpec) -> None:
    """Raises `InvalidInput` with all that is wrong, naming feed and options."""
    found = problems(spec)
    if found:
        raise InvalidInput(f"feed {spec.name!r}: {'; '.join(found)}")


def option_problems(spec: FeedSpec) -> list[str]:
    """What is wrong with the options of connector and sink, as such and beside one another."""
    found = []
    for path, what in json_problems({"source": spec.source, "sink": spec.sink}, _secret_problem):
        found.append(f"{path}: {what}")
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
    if not isinstance(value, str) or keys[:2] == ("source", "secrets"):
        return None
    if _REFERENCE.search(value):
        return (
            "${env:…} and ${file:…} stand only under source.secrets; "
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
        return f"would be stored and shown as it stands; {instead}"
    return None
