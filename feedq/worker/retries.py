"""Counts the failures of one feed on this worker, and decides when and where it is tried again.

The arithmetic is in `feedq.core.backoff`; here is what it is told: how long a connection held, for how long the
feed has been without one, how long its sink took it for the owner, and how often it was found unable to run at
all."""

from __future__ import annotations

from random import Random

from feedq.core.backoff import (
    BackoffPolicy,
    Reconnect,
    RetryElsewhere,
    attempts_after,
    next_recheck_s,
    next_try,
)
from feedq.core.clock import Clock
from feedq.core.model import Claim, Reason
from feedq.errors import SinkUnavailable, SourceBusy, SourceUnavailable


class FeedRetries:
    """The failures of one feed, counted from the number in its claim. Used on the runner's loop."""

    def __init__(self, claim: Claim, *, policy: BackoffPolicy, clock: Clock, rng: Random) -> None:
        self._policy, self._clock, self._rng = policy, clock, rng
        self.failures = claim.failures
        """The failures of any kind since a record of the feed landed last."""
        self.attempts = 0 if claim.has_failed else claim.attempts
        """The attempts to connect, or to own the checkpoint, that failed in a row."""
        self.rechecks = claim.attempts if claim.has_failed else 0
        """How often in a row the feed was found unable to run as declared."""
        self._is_new_here = claim.is_new_here
        self._connected_at: float | None = None
        self._owned_since: float | None = None
        """When the sink took this epoch for the latest one."""
        self._failing_since: float | None = None
        """When the feed began to try for the connection that it has not got."""

    @property
    def is_connected(self) -> bool:
        return self._connected_at is not None

    def begin(self) -> None:
        """The feed tries to connect."""
        if self._failing_since is None:
            self._failing_since = self._clock.monotonic()

    def connected(self) -> None:
        self._connected_at, self._failing_since = self._clock.monotonic(), None

    def disconnected(self) -> None:
        self._connected_at = None

    def fenced(self) -> None:
        """The sink takes this epoch for the latest one."""
        self._owned_since = self._clock.monotonic()

    def landed(self) -> None:
        """A record of the feed is in its table."""
        self.failures = 0

    def after(
        self, error: SourceUnavailable | SinkUnavailable, *, has_received: bool
    ) -> Reconnect | RetryElsewhere:
        """Decide after a connection that broke or was not made. ``has_received``: a record under this epoch."""
        held_s, failing_s = self._seconds_since(self._connected_at), 0.0
        if self._connected_at is None:
            failing_s = self._seconds_since(self._failing_since)
        self.failures += 1
        self.attempts = attempts_after(self.attempts, connected_s=held_s, policy=self._policy)
        return next_try(
            self.attempts,
            rng=self._rng,
            policy=self._policy,
            not_before_s=error.retry_in_s if isinstance(error, SourceBusy) else 0.0,
            is_new_here=self._is_new_here and not has_received,
            failing_s=failing_s,
        )

    def after_fence_s(self) -> float:
        """Return in how long a feed that was superseded in its sink is placed again: at once the first time,
        and later each time that follows soon. Two installations that share a sink would take it from each other
        without end."""
        self.failures += 1
        owned_s = self._seconds_since(self._owned_since)
        self.attempts = attempts_after(self.attempts, connected_s=owned_s, policy=self._policy)
        if self.attempts == 1:
            return 0.0
        return next_try(self.attempts - 1, rng=self._rng, policy=self._policy).delay_s

    def unusable(self) -> None:
        """The feed cannot run as declared."""
        self.failures += 1
        self.rechecks += 1

    def next_recheck_s(self) -> float:
        """Return in how long a feed that cannot run as declared is checked again."""
        return next_recheck_s(self.rechecks, rng=self._rng, policy=self._policy)

    def counted_for(self, reason: Reason) -> int:
        """Return how many failures in a row a release for this reason tells the next worker of."""
        counts = {Reason.BACKOFF: self.attempts, Reason.FENCED: self.attempts, Reason.FAILED: self.rechecks}
        return counts.get(reason, 0)

    def _seconds_since(self, at: float | None) -> float:
        return 0.0 if at is None else self._clock.monotonic() - at
