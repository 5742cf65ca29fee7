"""Interrupts: what a runner is woken for, by its supervisor."""

from __future__ import annotations

from enum import Enum, auto


class Interrupt(Enum):
    """Why a runner is woken from whatever it waits for."""

    SUSPEND = auto()
    """The lease cannot be trusted for the moment: cut the connection, wait, go on."""
    STOP = auto()
    """Commit what has been received, then let go."""
    LOST = auto()
    """Somebody else is owner, or may be: end without writing or releasing anything."""
