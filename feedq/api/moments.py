"""Times in requests: with a zone or offset, in the years that the control database is asked about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime

from feedq.values import YEARS


def _in_utc(at: datetime) -> datetime:
    """Raises ValueError. PostgreSQL knows no offset of more than fifteen hours: none goes further than here."""
    try:
        found = at.astimezone(UTC)
    except OverflowError:
        found = None
    if found is None or not YEARS[0] <= found < YEARS[1]:
        raise ValueError("must lie in the years 1970 to 2999")
    return found


AskedMoment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
