"""Decides when to try again, and where: full-jitter exponential backoff.

The caller counts failures in a row and performs the decision; nothing here sleeps or draws a clock.
Full jitter (a uniform draw between nothing and the exponential bound) spreads the reconnects of a
thousand feeds of one remote host better than a jitter around the bound does
(https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).

A feed that fails on a worker on which it never did is soon released, as the worker may be the one at fault.
Once it has been round, it stays where it is for several failures at a time: then it is the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """The policy of tries: how fast they follow each other, and when another worker gets the next one."""

    base_s: float = 0.2
    max_s: float = 30.0
    attempts_in_place: int = 5
    """Failures in a row before the lease is released, so that another worker tries."""
    healthy_s: float = 60.0
    """A connection that held this long clears the counts."""
    elsewhere_s: float = 5.0
    """Without a connection for this long on a worker that is new to it, a feed goes elsewhere."""
    failed_s: float = 10.0
    """The first checks of a feed that cannot run as declared are this far apart."""
    failed_max_s: float = 600.0


FIRST_RECHECKS = 6
"""How often a feed that cannot run as declared is checked before it is done more rarely: for about a minute,
while somebody who has just declared it mends what is missing."""
RECHECKS_GROW = 1.5
RECHECKS_JITTER = 0.2
"""Thousands of feeds that want the same table are not checked all at once."""


@dataclass(frozen=True, slots=True)
class NextTry:
    """When to try again, and where."""

    delay_s: float
    is_elsewhere: bool
    """Whether to release the lease: then no worker may start the feed before the delay is over."""


def next_try(
    attempts: int,
    *,
    rng: Random,
    policy: BackoffPolicy,
    not_before_s: float = 0.0,
    is_new_here: bool = False,
    failing_s: float = 0.0,
) -> NextTry:
    """Decide after the ``attempts``-th failure in a row (1 is the first). Never gives up.

    A source that wants to be left alone for ``not_before_s`` is, and then the jitter begins: it may have told
    the same to thousands. With ``is_new_here`` the feed has not failed on this worker under an earlier epoch, in
    which it could not connect for ``failing_s``; if another one has let it go already, one failure here is enough.
    """
    assert attempts >= 1, attempts
    # 2.0 ** attempts would overflow after a thousand failures; any base has reached its maximum by then.
    bound_s = min(policy.max_s, policy.base_s * 2.0 ** min(attempts - 1, 1000))
    delay_s = not_before_s + rng.uniform(0.0, bound_s)
    in_place = max(policy.attempts_in_place, 1)
    goes_on = attempts > in_place or (failing_s >= policy.elsewhere_s and not not_before_s)
    return NextTry(delay_s, is_elsewhere=attempts % in_place == 0 or (is_new_here and goes_on))


def next_recheck_s(rechecks: int, *, rng: Random, policy: BackoffPolicy) -> float:
    """Return how long after the ``rechecks``-th check in a row that found it so (1 is the first) a feed that
    cannot run as declared is checked again."""
    assert rechecks >= 1, rechecks
    growth = RECHECKS_GROW ** min(max(rechecks - FIRST_RECHECKS, 0), 100)
    bound_s = min(policy.failed_max_s, policy.failed_s * growth)
    return bound_s * rng.uniform(1 - RECHECKS_JITTER, 1)


def attempts_after(attempts: int, *, connected_s: float, policy: BackoffPolicy) -> int:
    """The count to go on with after a connection that held ``connected_s`` seconds broke off.

    One that was never made (0 s) clears nothing, whatever ``healthy_s`` is.
    """
    return 1 if connected_s > 0 and connected_s >= policy.healthy_s else attempts + 1
