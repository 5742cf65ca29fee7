"""How long things take that are no policy: messages, statements, handshakes, restarts of a process.

Assumed, of the size that one machine with PostgreSQL and Valkey beside the workers shows; set them to what your
own fleet does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Holds the delays of a simulation, in seconds."""

    wake_s: float = 0.01
    """From a change to the reconcile pass that it wakes."""
    start_s: float = 0.05
    """From an assignment to its claim, and from a stop request until the worker hears of it: the commit, the
    notification, the worker's statement."""
    stop_s: float = 0.05
    """From hearing of a stop request to the release: the last records are committed meanwhile, and the feed is
    down."""
    connect_s: float = 0.05
    """From dialling to streaming: the handshake with the remote host."""
