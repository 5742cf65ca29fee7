"""The loss of a worker process, and the stacks of its threads that may explain it.

Only the standard library: the monitor beside each worker imports this, and is to be small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STACK_CALLS_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a worker process: how, and to which feed, as its monitor found out."""

    cause: str
    """``stalled``, ``crashed``, ``memory``, ``killed``, or ``stuck``, which is not a feed's fault."""
    said: str
    """In words, with what is known of the place."""
    feed_id: int | None = None
    is_certain: bool = False
    """Whether it is known that this feed's code did it; or it merely was in hand at the end."""
    stack: tuple[str, ...] = ()
    """The calls of the thread that did it, the innermost first."""

    def shown_stack(self) -> str | None:
        """The innermost calls, a line each: under the name of ``stack`` the log of a console takes only a text."""
        return "\n".join(self.stack[:STACK_CALLS_SHOWN]) or None


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The calls that one thread was in, the innermost first: ``File "…", line 3 in f``."""

    ident: int
    is_current: bool
    calls: tuple[str, ...]

    @property
    def where(self) -> str:
        return self.calls[0] if self.calls else "nowhere in Python code"


def parse_stacks(text: str) -> list[ThreadStack]:
    """The stacks of a dump of faulthandler."""
    stacks: list[ThreadStack] = []
    head: tuple[int, bool] | None = None
    calls: list[str] = []

    def close() -> None:
        if head is not None:
            stacks.append(ThreadStack(*head, tuple(calls)))

    for line in text.splitlines():
        words = line.split()
        if line.startswith(("Thread 0x", "Current thread 0x")):
            close()
            number = next(word for word in words if word.startswith("0x"))
            head, calls = (int(number.rstrip(":"), 16), words[0] == "Current"), []
        elif line.startswith("  ") and head is not None:
            calls.append(line.strip())
        elif line.strip():
            close()
            head = None
    close()
    return stacks
