"""``Retry-After``: when a busy server wants to be asked again, as seconds or as a date (RFC 9110, 10.2.3)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

RETRY_AFTER_S_MAX: Final = 3600.0
"""A source that asks for a longer pause is asked again after this one."""


def retry_after_s(text: str, *, now: datetime) -> float | None:
    """What a ``Retry-After`` header says, at most `RETRY_AFTER_S_MAX`; None if nothing that makes sense."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return min(float(text), RETRY_AFTER_S_MAX)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return min(max(0.0, (at - now).total_seconds()), RETRY_AFTER_S_MAX)
