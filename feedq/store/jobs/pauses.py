"""Why feedq itself pauses a schedule: stored as the reason of the pause, and what tells it from one of a person.

A pause that has to do with the declaration ends with the next one. All others last until somebody resumes it, or
until their time is up.
"""

from __future__ import annotations

from feedq.errors import InvalidInput

DECLARED = "declared as paused"
"""The declaration asks for it."""
UNFIRED = "it cannot be fired: "
"""Begins the reason of one about which firing could decide nothing, by its declaration."""
REASON_MAX = 1_000
"""Characters of the reason of a pause: it is shown in lists."""


def ends_when_declared(reason: str | None) -> bool:
    return reason is not None and (reason == DECLARED or reason.startswith(UNFIRED))


def check_reason(reason: str | None) -> None:
    """Of a person. Raises `InvalidInput`."""
    if reason is None:
        return
    if len(reason) > REASON_MAX or not reason.isprintable():
        raise InvalidInput(f"reason: must be printable, and at most {REASON_MAX} characters")
    if ends_when_declared(reason):
        # An edit would end the pause of somebody who wants it to last.
        raise InvalidInput(f"reason: {reason!r} is what feedq itself says; say it in other words")
