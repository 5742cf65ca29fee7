"""Calls functions of the protocol, which `feedq/control/sql` holds, and reads what they answer.

A function is given values, or a JSON document for what has many fields. It answers with one value or one document,
which is read as the dataclass that it is of. Their schema has the protocol's version in its name: processes of two
releases each call their own, on the same tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from feedq.control.store.database import Connection
from feedq.core.json_texts import same_number
from feedq.core.model import ANYWHERE, FeedSpec, Process, Selector, TargetState
from feedq.core.schedule.spec import ScheduleSpec
from feedq.core.values import Entry

T = TypeVar("T")

SCHEMA: Final = "feedq_1"
"""The functions of this release. What a function is given or answers changes only with the number."""
VERSION: Final = int(SCHEMA.removeprefix("feedq_"))
MARK: Final = "protocol of feedq"
"""The comment on the schema of each version, which tells it from a schema of somebody else."""
FILES: Final = (
    "leases.sql",
    "feeds.sql",
    "expectations.sql",
    "workers.sql",
    "passes.sql",
    "runs.sql",
    "ends.sql",
    "schedules.sql",
    "taps.sql",
    "access.sql",
    "roles.sql",
)
"""In the order in which they are run: a function may use those before it."""
KEPT: Final = 4_096
"""Jobs that are kept, read once: the runs of a schedule all have the same."""
_DIRECTORY: Final = Path(__file__).parents[1] / "sql"


def definition() -> str:
    """The statements that make the functions and views.

    They replace what is there, so that a migration can correct the functions of a version while they are called.
    """
    files = "\n".join((_DIRECTORY / name).read_text() for name in FILES)
    made = re.sub(r"^CREATE (?=FUNCTION|VIEW)", "CREATE OR REPLACE ", files, flags=re.MULTILINE)
    return f"CREATE SCHEMA IF NOT EXISTS {SCHEMA};\nCOMMENT ON SCHEMA {SCHEMA} IS '{MARK}';\n{made}"


def installed(c: Connection) -> list[int]:
    """Read which versions a database has, in their order."""
    sql = """
        SELECT CAST(substr(nspname, length('feedq_') + 1) AS integer) AS version FROM pg_namespace
        WHERE nspname ~ '^feedq_[0-9]{1,6}$' AND obj_description(oid, 'pg_namespace') = %(mark)s ORDER BY 1
    """
    return [row.version for row in c.execute(sql, {"mark": MARK})]


def document(given: object) -> str:
    """What has many fields, or rows of it, as a function is given them."""
    return msgspec.json.encode(given, enc_hook=_written).decode()


def call(c: Connection, function: str, kind: type[T], /, **given: Any) -> T:
    """Call a function with arguments by their names, and read its answer."""
    return read(ask(c, function, **given) or "null", kind)


def ask(c: Connection, function: str, /, **given: Any) -> str | None:
    """Call a function, and leave its answer as it came, which may be none."""
    arguments = ", ".join(f"{name} => %({name})s" for name in given)
    answer: str | None = c.execute(
        f"SELECT CAST({SCHEMA}.{function}({arguments}) AS text)", given
    ).scalar_one()
    return answer


def read(answer: str | msgspec.Raw, kind: type[T]) -> T:
    """Read an answer, or a part of one that was left as it came. Raises `InvalidInput` on a job that this release
    cannot read."""
    found: T = _decoder(kind).decode(answer)  # type: ignore[arg-type]  # types are hashable
    return found


@lru_cache(maxsize=KEPT)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    # A cursor may hold numbers that are larger, or more exact, than a float.
    return msgspec.json.Decoder(kind, dec_hook=_stored, float_hook=same_number)


@lru_cache(maxsize=KEPT)
def job_from(stored: str) -> ScheduleSpec:
    """Read the job of a run. Raises `InvalidInput`."""
    return ScheduleSpec.from_json(stored)


def _written(given: object) -> object:
    """Write a declaration as it is stored, and rows that are made one by one."""
    if isinstance(given, Entry):
        return msgspec.Raw(given.to_json().encode())
    if isinstance(given, Iterator):
        return list(given)
    raise NotImplementedError(type(given))


def _stored(kind: type, given: Any) -> Any:
    """Read a declaration as it is stored, which was checked when it was declared."""
    if kind is ScheduleSpec:
        return job_from(given)
    if kind is Selector:
        return Selector.of(given) if given else ANYWHERE
    if kind is not FeedSpec:
        raise NotImplementedError(kind)
    # JSON tells no 2.0 from a 2.
    typed = {"weight": float(given["weight"]), "process": Process(given["process"])}
    return FeedSpec.of({**given, **typed, "target_state": TargetState(given["target_state"])})
