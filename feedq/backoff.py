"""When to try again: full-jitter exponential backoff, as a decision.

The caller counts failures in a row and performs the decision; nothing here sleeps or draws a clock.
Full jitter (a uniform draw between nothing and the exponential bound) spreads the reconnects of a
thousand feeds of one remote host better than a jitter around the bound does
(https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """How fast to try again, and when to let another worker try."""

    base_s: float = 0.2
    max_s: float = 30.0
    attempts_in_place: int = 5
    """Failures in a row before the lease is released, so that another worker tries."""
    healthy_s: float = 60.0
    """A connection that held this long clears the count."""


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Keep the lease and connect again after the delay."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class LetGo:
    """Release the lease; no worker may start the feed before the delay is over."""

    delay_s: float


def next_try(
    attempts: int, *, rng: Random, policy: BackoffPolicy, not_before_s: float = 0.0
) -> Reconnect | LetGo:
    """Decide after the ``attempts``-th failure in a row (1 is the first). Never gives up.

    A source that wants to be left alone for ``not_before_s`` is, and then the jitter begins: it may have told
    the same to thousands.
    """
    assert attempts >= 1, attempts
    # 2.0 ** attempts would overflow after a thousand failures; any base has reached its maximum by then.
    bound_s = min(policy.max_s, policy.base_s * 2.0 ** min(attempts - 1, 1000))
    delay_s = not_before_s + rng.uniform(0.0, bound_s)
    if attempts % max(policy.attempts_in_place, 1) == 0:
        return LetGo(delay_s)
    return Reconnect(delay_s)


def attempts_after(attempts: int, *, connected_s: float, policy: BackoffPolicy) -> int:
    """The count to go on with after a connection that held ``connected_s`` seconds broke off.

    One that was never made (0 s) clears nothing, whatever ``healthy_s`` is.
    """
    return 1 if connected_s > 0 and connected_s >= policy.healthy_s else attempts + 1
