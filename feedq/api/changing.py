"""What requests that change something have alike: preconditions, dry runs, reasons, and what they answer.

An ETag is the version of a declaration (`feedq.model.Version`), not of the whole document, most of which is state.
With ``If-Match`` a change is made to that version or not at all: the store compares within the transaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from feedq.access import Caller
from feedq.api.answers import answer
from feedq.api.backend import ApiBackend, Served
from feedq.api.callers import FleetAdmin, FleetOperator, Operator
from feedq.authorship import REASON_MAX, give_reason
from feedq.errors import InvalidInput, Outdated
from feedq.manifest.changes import OptionChange
from feedq.model import Version
from feedq.report.masking import masked

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
    schedules: int | None = None
    """Of a calendar, how many schedules it times anew."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A change that somebody asks for."""

    request: Request
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


def _asked(
    request: Request, backend: Served, caller: Operator, dry_run: DryRun = False, if_match: IfMatch = None
) -> Asked:
    return Asked(request, backend, caller, dry_run, if_match)


def _asked_of_fleet(
    request: Request,
    backend: Served,
    caller: FleetOperator,
    dry_run: DryRun = False,
    if_match: IfMatch = None,
) -> Asked:
    return Asked(request, backend, caller, dry_run, if_match)


def _asked_of_admin(request: Request, backend: Served, caller: FleetAdmin, dry_run: DryRun = False) -> Asked:
    return Asked(request, backend, caller, dry_run, None)


Change = Annotated[Asked, Depends(_asked)]
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


def require_none(what: str, if_none_match: str | None, *, exists: bool) -> None:
    """Raises `Outdated` when there is something already and there should not be; `InvalidInput`."""
    if if_none_match is None:
        return
    if if_none_match != ANY:
        raise InvalidInput("If-None-Match: must be *")
    if exists:
        raise Outdated(f"{what} exists already, and If-None-Match says that it must not")


def heed(given: Reasoned | None) -> None:
    """Take the reason that a body gives. Raises `InvalidInput`."""
    if given is not None:
        give_reason(given.reason)
