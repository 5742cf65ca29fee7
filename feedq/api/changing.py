"""What requests that change something have alike: preconditions, dry runs, reasons, and what they answer.

An ETag is the version of a declaration (`feedq.core.model.Version`), not of the whole document, most of which is
state. With ``If-Match`` a change is made to that version or not at all: the store compares within the
transaction."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Self, TypeVar

from fastapi import Depends, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from feedq.api.answers import answer
from feedq.api.arguments import NamePath
from feedq.api.backend import ApiBackend
from feedq.api.callers import FleetAdmin, FleetOperator, Operator, Served, changed
from feedq.core.authorship import REASON_MAX, give_reason
from feedq.core.model import Feed, Version, require_version
from feedq.core.roles import Caller
from feedq.errors import Conflict, InvalidInput, Outdated
from feedq.verbs import actions
from feedq.verbs.manifest.changes import OptionChange
from feedq.verbs.report.masking import masked

T = TypeVar("T")

TRIES: Final = 5
"""What is added and removed again and again by others is given up."""
ANY: Final = "*"
ETAG: Final = re.compile(r'"(\d{1,18})\.(\d{1,9})"')

DryRun = Annotated[bool, Query(description="Check everything, say what would be done, and do nothing.")]
IfMatch = Annotated[
    str | None,
    Header(max_length=100, description="The ETag of the version that the change was decided for, or `*`."),
]
IfNoneMatch = Annotated[
    str | None, Header(max_length=100, description="`*`: only if there is nothing of that name.")
]


class Reasoned(BaseModel):
    """What any change may say."""

    model_config = ConfigDict(extra="forbid")

    reason: str | None = Field(None, max_length=REASON_MAX, description="Why; as the header Feedq-Reason.")

    @model_validator(mode="after")
    def _give_reason(self) -> Self:
        # Bodies are read in the context of the request, which the endpoint inherits.
        give_reason(self.reason)
        return self


class OptionRow(BaseModel):
    """An option before and after."""

    option: str
    before: Any
    after: Any


class ChangeRow(BaseModel):
    """What was done, or would be."""

    name: str
    result: str
    dry_run: bool
    generation: int | None = None
    changes: list[OptionRow] = []
    note: str | None = None
    """Whose checkpoint a feed adopts."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A change that somebody asks for."""

    backend: ApiBackend
    caller: Caller
    dry_run: bool
    if_match: str | None

    @property
    def expected(self) -> Version | None:
        """The version to be changed; None is any. Raises `InvalidInput`."""
        return None if self.if_match in (None, ANY) else version_of(self.if_match)

    def done(
        self,
        name: str,
        result: str,
        *,
        version: Version | None = None,
        changes: Iterable[OptionChange] = (),
        status: int = 200,
        **more: Any,
    ) -> Response:
        """The answer to the change."""
        document = ChangeRow(
            name=name,
            result=result,
            dry_run=self.dry_run,
            generation=None if version is None else version[1],
            changes=[OptionRow(**{k: masked(v) for k, v in asdict(change).items()}) for change in changes],
            **more,
        )
        headers = None if version is None else {"ETag": etag_of(version)}
        return answer(document.model_dump(), status=status, headers=headers)


def _asked(backend: Served, caller: Operator, dry_run: DryRun = False, if_match: IfMatch = None) -> Asked:
    return Asked(backend, caller, dry_run, if_match)


def _asked_of_fleet(
    backend: Served, caller: FleetOperator, dry_run: DryRun = False, if_match: IfMatch = None
) -> Asked:
    return Asked(backend, caller, dry_run, if_match)


def _asked_of_admin(backend: Served, caller: FleetAdmin, dry_run: DryRun = False) -> Asked:
    return Asked(backend, caller, dry_run, None)


Change = Annotated[Asked, Depends(_asked)]


@dataclass(frozen=True, slots=True)
class AskedOfFeed(Asked):
    """A change of the feed that the address names."""

    feed: Feed

    def require_version(self) -> None:
        """For what is not carried out, the comparison that the store would make. Raises `Outdated`."""
        require_version(f"feed {self.feed.name!r}", self.feed.version, self.expected)


def _asked_of_feed(asked: Change, name: NamePath) -> AskedOfFeed:
    """Raises `NotFound`, `Forbidden`."""
    feed = actions.live_feed(asked.backend.store, name)
    changed(asked.caller, feed)
    return AskedOfFeed(asked.backend, asked.caller, asked.dry_run, asked.if_match, feed)


FeedChange = Annotated[AskedOfFeed, Depends(_asked_of_feed)]
FleetChange = Annotated[Asked, Depends(_asked_of_fleet)]
AdminChange = Annotated[Asked, Depends(_asked_of_admin)]


def etag_of(version: Version) -> str:
    return f'"{version[0]}.{version[1]}"'


def version_of(etag: str) -> Version:
    """Raises `InvalidInput`."""
    found = ETAG.fullmatch(etag)
    if found is None:
        raise InvalidInput("If-Match: is no ETag of a declaration; give the one that an answer had, or *")
    return int(found[1]), int(found[2])


def put(
    asked: Asked,
    what: str,
    if_none_match: str | None,
    existing: Callable[[], T | None],
    make: Callable[[T | None], Response],
) -> Response:
    """Add what is declared, or make what is there so; ``make`` is given that.

    Raises `Outdated` when it is not as the preconditions say, `InvalidInput`, `Conflict`.
    """
    if if_none_match not in (None, ANY):
        raise InvalidInput("If-None-Match: must be *")
    for _ in range(TRIES):
        before = existing()
        if if_none_match is not None and before is not None:
            raise Outdated(f"{what} exists already, and If-None-Match says that it must not")
        if before is None and asked.if_match is not None:
            raise Outdated(f"there is no {what}, and If-Match says that there is")
        try:
            return make(before)
        except Conflict as error:
            # Somebody else was faster. Who did not say what it must be like has it made so all the same.
            if asked.if_match or if_none_match:
                raise Outdated(str(error)) from error
            if before is not None and not isinstance(error, Outdated):
                raise
    raise Conflict(f"{what} is changed by others again and again; nothing was changed")


def named(declared: dict[str, Any], name: str) -> dict[str, Any]:
    """Raises `InvalidInput` when the body has another name than the address."""
    if declared.get("name", name) != name:
        raise InvalidInput(f"name: must be {name!r}, as in the address, or left out")
    return declared | {"name": name}


def patched(declared: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A declaration with a merge patch (RFC 7396): null takes a key away. Raises `InvalidInput`."""
    merged: dict[str, Any] = _merged(declared, patch)
    if merged.get("name") != declared["name"]:
        raise InvalidInput("name: cannot be changed; declare it under its new name, and remove this one")
    return merged


def _merged(before: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged
